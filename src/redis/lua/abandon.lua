-- abandon.lua: forgets the last attempt, which did nothing.
--
-- KEYS[1]  record         hash, as begin.lua keeps it
-- ARGV[1]  token
-- ARGV[2]  channel        where waiters are told
-- ARGV[3]  name           as they are told
-- returns  1 if it was the last attempt, else 0
local record = KEYS[1]
local token, channel, name = ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HMGET', record, 't', 's')
if found[1] ~= token or found[2] ~= 'r' then return 0 end
redis.call('DEL', record)
-- Without the right to publish, waiters ask again by themselves.
redis.pcall('PUBLISH', channel, name)
return 1
