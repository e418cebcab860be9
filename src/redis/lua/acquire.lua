-- acquire.lua: takes leases for one token, all or none.
--
-- KEYS[i]    leases         strings: token, fence, since when (us) and label of the holder; one for each name
-- KEYS[n+i]  fence counters integers: the last fence of each name
-- ARGV[1]    token
-- ARGV[2]    ttl            ms
-- ARGV[3]    label
-- returns    the fence of each name, or 0, the ms left of a lease that another holds, and which name that is
local names = #KEYS / 2
local token, ttl, label = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local DAY = 86400000 -- ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local ours, taken = {}, nil
for i = 1, names do
  local value = redis.call('GET', KEYS[i])
  if value and string.match(value, '^(%x+) ') == token then
    ours[i] = value
  elseif value and not taken then
    local left = redis.call('PTTL', KEYS[i])
    if left == -1 then -- its expiry was taken away: nothing is held for ever
      left = ttl
      redis.call('PEXPIRE', KEYS[i], left)
    end
    taken = {0, math.max(left, 0), i - 1}
  end
end
if taken then
  for i in pairs(ours) do redis.call('DEL', KEYS[i]) end
  return taken
end

local fences = {}
for i = 1, names do
  local lease, counter = KEYS[i], KEYS[names + i]
  if ours[i] then
    redis.call('PEXPIRE', lease, ttl)
    fences[i] = tonumber(string.match(ours[i], '^%x+ (%d+) '))
  else
    local last = redis.pcall('GET', counter)
    local fence = math.max((type(last) == 'string' and tonumber(last) or 0) + 1, now)
    redis.call('SET', counter, string.format('%.0f', fence), 'PX', math.ceil((fence - now) / 1000) + DAY)
    redis.call('SET', lease, string.format('%s %.0f %.0f %s', token, fence, now, label), 'PX', ttl)
    fences[i] = fence
  end
end
return fences
