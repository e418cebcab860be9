-- flag.lua: says that somebody may be blocked, for so long at least.
--
-- KEYS[1]  flag           exists while anybody may be blocked
-- ARGV[1]  lifetime       ms
-- returns  1
local flag, lifetime = KEYS[1], tonumber(ARGV[1])
if redis.call('PTTL', flag) < lifetime then redis.call('SET', flag, 1, 'PX', lifetime) end
return 1
