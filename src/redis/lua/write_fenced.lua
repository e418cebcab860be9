-- write_fenced.lua: writes a value unless a greater fence is known.
--
-- KEYS[1]  value          hash: f the fence under which it was written, v the value
-- KEYS[2]  fence counter  integer: the last fence that acquire.lua has minted for the name
-- ARGV[1]  fence
-- ARGV[2]  value
-- ARGV[3]  keep           ms for which it is kept
-- returns  1 if it was written, else 0
local key, counter = KEYS[1], KEYS[2]
local fence, value, keep = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local minted = redis.pcall('GET', counter)
local highest = math.max(tonumber(redis.call('HGET', key, 'f') or 0), type(minted) == 'string' and tonumber(minted) or 0)
if fence < highest then return 0 end
redis.call('HSET', key, 'f', string.format('%.0f', fence), 'v', value)
redis.call('PEXPIRE', key, keep)
return 1
