-- requeue.lua: lets a dead job be claimed again, as if it never had been.
--
-- KEYS[1]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[2]  dead           sorted set: ids of jobs that have died, by that time (ms)
-- KEYS[3]  delayed        sorted set: ids of jobs that may be claimed later, by that time (ms)
-- ARGV[1]  id
-- ARGV[2]  channel        where workers are told
-- ARGV[3]  name           as they are told
-- returns  1, or 0 if no job of that id has died
local metas, dead, delayed = KEYS[1], KEYS[2], KEYS[3]
local id, channel, name = ARGV[1], ARGV[2], ARGV[3]
local packed = redis.call('HGET', metas, id)
if redis.call('ZREM', dead, id) == 0 or not packed then return 0 end
local meta = cmsgpack.unpack(packed)
meta[1], meta[5] = 0, ''
redis.call('HSET', metas, id, cmsgpack.pack(meta))
local time = redis.call('TIME')
redis.call('ZADD', delayed, time[1] * 1000 + math.floor(time[2] / 1000), id)
-- Without the right to publish, workers ask again by themselves.
redis.pcall('PUBLISH', channel, name)
return 1
