-- block.lua: blocks a subject under one policy for a time, or lets it in again.
--
-- KEYS[1]  blocks         string: of each policy that blocks the subject its name and until when (us), by spaces
-- KEYS[2]  flag           exists while anybody may be blocked; left out by a caller who has seen to it
-- ARGV[1]  now            us, 0: the server's
-- ARGV[2]  policy
-- ARGV[3]  how long       us, 0: not any more
-- returns  now (us)
local key, flag = KEYS[1], KEYS[2]
local now, policy, long = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local found = redis.pcall('GET', key)
local blocks, last = {}, 0
local function add(name, ends)
  blocks[#blocks + 1] = string.format('%s %.0f', name, ends)
  last = math.max(last, ends)
end
if type(found) == 'string' then
  for name, ends in string.gmatch(found, '([%w._-]+) (%d+)') do
    if name ~= policy and tonumber(ends) > now then add(name, tonumber(ends)) end
  end
end
if long > 0 then add(policy, now + long) end

if #blocks == 0 then
  redis.call('DEL', key)
else
  local lifetime = math.ceil((last - now) / 1000)
  redis.call('SET', key, table.concat(blocks, ' '), 'PX', lifetime)
  if flag and redis.call('PTTL', flag) < lifetime then redis.call('SET', flag, 1, 'PX', lifetime) end
end
return now
