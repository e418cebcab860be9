-- nack.lua: puts a job back, to be claimed again later.
--
-- KEYS[1]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[2]  claimed        sorted set: ids of jobs that are claimed, by the time (ms) until which
-- KEYS[3]  delayed        sorted set: ids of jobs that may be claimed later, by that time (ms)
-- ARGV[1]  id
-- ARGV[2]  token
-- ARGV[3]  after          ms
-- ARGV[4]  channel        where workers are told
-- ARGV[5]  name           as they are told
-- returns  1 if its claim was still on, else 0
local metas, claimed, delayed = KEYS[1], KEYS[2], KEYS[3]
local id, token, after, channel, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local packed, ends = redis.call('HGET', metas, id), redis.call('ZSCORE', claimed, id)
if not packed or not ends or tonumber(ends) <= now_ms then return 0 end
local meta = cmsgpack.unpack(packed)
if meta[4] ~= token then return 0 end
meta[4] = ''
redis.call('HSET', metas, id, cmsgpack.pack(meta))
redis.call('ZREM', claimed, id)
redis.call('ZADD', delayed, now_ms + after, id)
-- Without the right to publish, workers ask again by themselves.
redis.pcall('PUBLISH', channel, name)
return 1
