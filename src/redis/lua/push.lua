-- push.lua: adds a job to a queue.
--
-- KEYS[1]  ready          sorted set: ids of jobs that may be claimed, by priority and the time (ms) they came
-- KEYS[2]  delayed        sorted set: ids of jobs that may be claimed later, by that time (ms)
-- KEYS[3]  payloads       hash: what jobs carry, by id
-- KEYS[4]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- ARGV[1]  id
-- ARGV[2]  payload
-- ARGV[3]  priority       0 to 255, the greater first
-- ARGV[4]  delay          ms
-- ARGV[5]  channel        where workers are told
-- ARGV[6]  name           as they are told
-- returns  1, or 0 if a job of that id is there
local ready, delayed, payloads, metas = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, payload, priority, delay = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, name = ARGV[5], ARGV[6]
local LEVEL = 4398046511104 -- ms of a level of priority: 139 years
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

if redis.call('HSETNX', payloads, id, payload) == 0 then return 0 end
redis.call('HSET', metas, id, cmsgpack.pack({0, priority, 0, '', ''}))
if delay > 0 then
  redis.call('ZADD', delayed, now_ms + delay, id)
else
  local base = (255 - priority) * LEVEL
  -- After the last of its level, also of the same millisecond.
  local last = redis.call('ZREVRANGEBYSCORE', ready, string.format('(%.0f', base + LEVEL), base, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local order = math.max(now_ms, last and tonumber(last) - base + 1 or 0)
  redis.call('ZADD', ready, string.format('%.0f', base + order), id)
end
-- Without the right to publish, workers ask again by themselves.
redis.pcall('PUBLISH', channel, name)
return 1
