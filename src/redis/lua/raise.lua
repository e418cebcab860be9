-- raise.lua: raises the fences of leases that a token still holds.
--
-- KEYS[i]    leases         strings: token, fence, since when (us) and label of the holder; one for each name
-- KEYS[n+i]  fence counters integers: the last fence of each name
-- ARGV[1]    token
-- ARGV[1+i]  fences         to be reached at least
-- returns    1, or 0 if not all were held
local names = #KEYS / 2
local token = ARGV[1]
local DAY = 86400000 -- ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local values = {}
for i = 1, names do
  values[i] = redis.call('GET', KEYS[i])
  if not values[i] or string.match(values[i], '^(%x+) ') ~= token then return 0 end
end
for i = 1, names do
  local lease, counter, fence = KEYS[i], KEYS[names + i], tonumber(ARGV[1 + i])
  local last = redis.pcall('GET', counter)
  local highest = math.max(type(last) == 'string' and tonumber(last) or 0, fence)
  redis.call('SET', counter, string.format('%.0f', highest), 'PX', math.max(math.ceil((highest - now) / 1000), 0) + DAY)
  local before, rest = string.match(values[i], '^%x+ (%d+) (.*)$')
  local left = redis.call('PTTL', lease)
  redis.call('SET', lease, string.format('%s %.0f %s', token, math.max(tonumber(before), fence), rest), 'PX', math.max(left, 1))
end
return 1
