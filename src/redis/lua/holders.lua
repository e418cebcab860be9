-- holders.lua: tells who holds a lease, or permits of a semaphore.
--
-- KEYS[1]  lease          string: token, fence, since when (us) and label of the holder; or
--                         sorted set: holders' tokens by the time (us) at which their permits end
-- ARGV[1]  most           holders that are told
-- returns  now (us); of a lease then its ms left and its value, of permits then each end (us) and its token
local key, most = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = {now}
if redis.call('TYPE', key).ok == 'zset' then
  local permits = redis.call('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  for i = 1, #permits, 2 do
    found[#found + 1] = tonumber(permits[i + 1])
    found[#found + 1] = permits[i]
  end
else
  local value = redis.call('GET', key)
  if value then
    found[2] = math.max(redis.call('PTTL', key), 0)
    found[3] = value
  end
end
return found
