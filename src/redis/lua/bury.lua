-- bury.lua: puts a job with the dead.
--
-- KEYS[1]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[2]  claimed        sorted set: ids of jobs that are claimed, by the time (ms) until which
-- KEYS[3]  dead           sorted set: ids of jobs that have died, by that time (ms)
-- ARGV[1]  id
-- ARGV[2]  token
-- ARGV[3]  reason
-- returns  1 if its claim was still on, else 0
local metas, claimed, dead = KEYS[1], KEYS[2], KEYS[3]
local id, token, reason = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local packed, ends = redis.call('HGET', metas, id), redis.call('ZSCORE', claimed, id)
if not packed or not ends or tonumber(ends) <= now_ms then return 0 end
local meta = cmsgpack.unpack(packed)
if meta[4] ~= token then return 0 end
meta[4], meta[5] = '', reason
redis.call('HSET', metas, id, cmsgpack.pack(meta))
redis.call('ZREM', claimed, id)
redis.call('ZADD', dead, now_ms, id)
return 1
