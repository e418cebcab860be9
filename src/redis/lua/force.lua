-- force.lua: ends all leases of a name, whoever holds them, and raises its fence.
--
-- KEYS[1]  lease          string or sorted set, as acquire.lua and acquire_permit.lua keep it
-- KEYS[2]  fence counter  integer: the last fence
-- ARGV[1]  channel        where waiters are told
-- ARGV[2]  name           as they are told
-- returns  how many leases there were
local lease, counter = KEYS[1], KEYS[2]
local channel, name = ARGV[1], ARGV[2]
local DAY = 86400000 -- ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local count
if redis.call('TYPE', lease).ok == 'zset' then
  count = redis.call('ZCOUNT', lease, string.format('(%.0f', now), '+inf')
else
  count = redis.call('EXISTS', lease)
  local last = redis.pcall('GET', counter)
  local fence = math.max((type(last) == 'string' and tonumber(last) or 0) + 1, now)
  redis.call('SET', counter, string.format('%.0f', fence), 'PX', math.ceil((fence - now) / 1000) + DAY)
end
redis.call('DEL', lease)
-- Without the right to publish, waiters ask again by themselves.
redis.pcall('PUBLISH', channel, name)
return count
