-- extend_permit.lua: lets permits last longer that their tokens still hold; makes none.
--
-- KEYS[i]    permits        sorted sets: holders' tokens by the time (us) at which their permits end
-- ARGV[i]    tokens
-- ARGV[n+i]  ttls           ms
-- returns    of each permit 1 if it was held, else 0
local count = #KEYS
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held = {}
for i = 1, count do
  local permits, token, ttl = KEYS[i], ARGV[i], tonumber(ARGV[count + i])
  local ends = redis.call('ZSCORE', permits, token)
  held[i] = 0
  if ends and tonumber(ends) > now then
    redis.call('ZADD', permits, string.format('%.0f', now + ttl * 1000), token)
    if redis.call('PTTL', permits) < ttl then redis.call('PEXPIRE', permits, ttl) end
    held[i] = 1
  end
end
return held
