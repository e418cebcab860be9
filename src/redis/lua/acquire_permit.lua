-- acquire_permit.lua: takes one of several permits.
--
-- KEYS[1]  permits        sorted set: holders' tokens by the time (us) at which their permits end
-- ARGV[1]  token
-- ARGV[2]  ttl            ms
-- ARGV[3]  most           permits that there are
-- returns  1 and how many permits are left, or 0, the ms left of the permit that ends first, and 0
local permits = KEYS[1]
local token, ttl, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

redis.call('ZREMRANGEBYSCORE', permits, '-inf', string.format('%.0f', now))
local held = redis.call('ZCARD', permits)
local others = redis.call('ZSCORE', permits, token) and held - 1 or held
if others < held or held < most then
  redis.call('ZADD', permits, string.format('%.0f', now + ttl * 1000), token)
  if redis.call('PTTL', permits) < ttl then redis.call('PEXPIRE', permits, ttl) end
  return {1, math.max(most - others - 1, 0)}
end
local first = redis.call('ZRANGE', permits, 0, 0, 'WITHSCORES')
return {0, math.ceil((tonumber(first[2]) - now) / 1000), 0}
