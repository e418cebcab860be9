-- release_permit.lua: gives a permit back, and tells who waits for one.
--
-- KEYS[1]  permits        sorted set: holders' tokens by the time (us) at which their permits end
-- ARGV[1]  token
-- ARGV[2]  channel        where waiters are told
-- ARGV[3]  name           as they are told
-- returns  1 if it was held, else 0
local permits = KEYS[1]
local token, channel, name = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = redis.call('ZSCORE', permits, token)
if not ends then return 0 end
redis.call('ZREM', permits, token)
-- Without the right to publish, waiters ask again by themselves.
redis.pcall('PUBLISH', channel, name)
return tonumber(ends) > now and 1 or 0
