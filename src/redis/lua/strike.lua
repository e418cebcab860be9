-- strike.lua: counts a refusal of one subject by one policy, where decide.lua could not.
--
-- KEYS[1]  strikes        string: as block.lua has it
-- ARGV[1]  now            us, 0: the server's
-- ARGV[2]  after          how many refusals lead to a block
-- ARGV[3]  within         us
-- ARGV[4]  block          us, the first
-- ARGV[5]  up to          us, the longest
-- returns  for how long (us) the subject is to be blocked, 0 if it is not yet
local strikes = KEYS[1]
local now, after, within, block, up_to =
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

return strike(strikes, now, after, within, block, up_to)
