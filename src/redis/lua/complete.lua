-- complete.lua: stores what the last attempt came to, even if it has lapsed since.
--
-- KEYS[1]  record         hash, as begin.lua keeps it
-- ARGV[1]  token
-- ARGV[2]  outcome
-- ARGV[3]  retain         ms for which the record is kept
-- ARGV[4]  channel        where waiters are told
-- ARGV[5]  name           as they are told
-- returns  1 if it was the last attempt, else 0
local record = KEYS[1]
local token, outcome, retain, channel, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local found = redis.call('HMGET', record, 't', 's')
if found[1] ~= token then return 0 end
if found[2] == 'r' then
  redis.call('HSET', record, 's', 'd', 'o', outcome)
  redis.call('PEXPIRE', record, retain)
  -- Without the right to publish, waiters ask again by themselves.
  redis.pcall('PUBLISH', channel, name)
end
return 1
