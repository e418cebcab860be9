-- extend_claim.lua: lets a claim last longer that has not ended.
--
-- KEYS[1]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[2]  claimed        sorted set: ids of jobs that are claimed, by the time (ms) until which
-- ARGV[1]  id
-- ARGV[2]  token
-- ARGV[3]  visibility     ms for which the claim lasts
-- returns  1 if it was still on, else 0
local metas, claimed = KEYS[1], KEYS[2]
local id, token, visibility = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local packed, ends = redis.call('HGET', metas, id), redis.call('ZSCORE', claimed, id)
if not packed or not ends or tonumber(ends) <= now_ms or cmsgpack.unpack(packed)[4] ~= token then return 0 end
redis.call('ZADD', claimed, now_ms + visibility, id)
return 1
