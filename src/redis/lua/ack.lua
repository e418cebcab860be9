-- ack.lua: removes a job that is done.
--
-- KEYS[1]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[2]  claimed        sorted set: ids of jobs that are claimed, by the time (ms) until which
-- KEYS[3]  payloads       hash: what jobs carry, by id
-- ARGV[1]  id
-- ARGV[2]  token
-- returns  1 if its claim was still on, else 0
local metas, claimed, payloads = KEYS[1], KEYS[2], KEYS[3]
local id, token = ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local packed, ends = redis.call('HGET', metas, id), redis.call('ZSCORE', claimed, id)
if not packed or not ends or tonumber(ends) <= now_ms or cmsgpack.unpack(packed)[4] ~= token then return 0 end
redis.call('ZREM', claimed, id)
redis.call('HDEL', metas, id)
redis.call('HDEL', payloads, id)
return 1
