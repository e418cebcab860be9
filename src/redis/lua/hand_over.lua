-- hand_over.lua: gives leases from one token to another, under new fences.
--
-- KEYS[i]    leases         strings: token, fence, since when (us) and label of the holder; one for each name
-- KEYS[n+i]  fence counters integers: the last fence of each name
-- ARGV[1]    token          that holds all of them
-- ARGV[2]    heir           the token that is to
-- ARGV[3]    ttl            ms
-- ARGV[4]    label          of the heir
-- returns    the fence of each name, or 0, 0, 0 if not all were held
local names = #KEYS / 2
local token, heir, ttl, label = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local DAY = 86400000 -- ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local last = {}
for i = 1, names do
  local value = redis.call('GET', KEYS[i])
  local holder, fence = string.match(value or '', '^(%x+) (%d+) ')
  if holder ~= token then return {0, 0, 0} end
  local counted = redis.pcall('GET', KEYS[names + i])
  last[i] = math.max(tonumber(fence), type(counted) == 'string' and tonumber(counted) or 0)
end

local fences = {}
for i = 1, names do
  local fence = math.max(last[i] + 1, now)
  redis.call('SET', KEYS[names + i], string.format('%.0f', fence), 'PX', math.ceil((fence - now) / 1000) + DAY)
  redis.call('SET', KEYS[i], string.format('%s %.0f %.0f %s', heir, fence, now, label), 'PX', ttl)
  fences[i] = fence
end
return fences
