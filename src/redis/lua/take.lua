-- take.lua: returns what was stored, and forgets it.
--
-- KEYS[1]  record         hash, as begin.lua keeps it
-- returns  1, outcome; or 0
local record = KEYS[1]
local found = redis.call('HMGET', record, 's', 'o')
if found[1] ~= 'd' then return {0} end
redis.call('DEL', record)
return {1, found[2]}
