-- block.lua: blocks a subject under one policy for a time, or lets it in again and forgets what led to it.
--
-- KEYS[1]  blocks         string: of each policy that blocks the subject its name and until when (us), by spaces
-- KEYS[2]  flag           exists while anybody may be blocked; left out by a caller who has seen to it, and the next too
-- KEYS[3]  strikes        string: the refusals counted, until when (us), the last block (us), and until when (us) that
--                         is remembered, by spaces
-- ARGV[1]  now            us, 0: the server's
-- ARGV[2]  policy
-- ARGV[3]  how long       us, 0: not any more
-- returns  now (us)
local blocks, flag, strikes = KEYS[1], KEYS[2], KEYS[3]
local now, policy, long = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

keep_block(blocks, flag, now, policy, long)
if strikes and long == 0 then redis.call('DEL', strikes) end
return now
