-- extend_attempt.lua: lets an attempt last longer that has not lapsed.
--
-- KEYS[1]  record         hash, as begin.lua keeps it
-- ARGV[1]  token
-- ARGV[2]  lease          ms for which the attempt lasts
-- returns  1 if it was still on, else 0
local record = KEYS[1]
local token, lease = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = redis.call('HMGET', record, 't', 's', 'u')
local ends = tonumber(found[3] or 0)
if found[1] ~= token or found[2] ~= 'r' or ends <= now then return 0 end
redis.call('HSET', record, 'u', string.format('%.0f', now + lease * 1000))
-- As much later as the attempt ends.
redis.call('PEXPIRE', record, math.max(redis.call('PTTL', record), 0) + math.max(math.ceil(lease - (ends - now) / 1000), 0))
return 1
