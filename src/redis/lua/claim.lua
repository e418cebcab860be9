-- claim.lua: claims jobs, after it has put back those whose delay or claim has ended.
--
-- KEYS[1]  ready          sorted set: ids of jobs that may be claimed, by priority and the time (ms) they came
-- KEYS[2]  delayed        sorted set: ids of jobs that may be claimed later, by that time (ms)
-- KEYS[3]  payloads       hash: what jobs carry, by id
-- KEYS[4]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[5]  claimed        sorted set: ids of jobs that are claimed, by the time (ms) until which
-- KEYS[6]  dead           sorted set: ids of jobs that have died, by that time (ms)
-- ARGV[1]  token
-- ARGV[2]  most           jobs
-- ARGV[3]  visibility     ms for which the claim lasts
-- ARGV[4]  attempts       after which a job is buried when its claim ends
-- returns  ms until there may be a job, -1 if that is not known; then of each job its id, attempt, fence and payload
local ready, delayed, payloads, metas, claimed, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, most, visibility, attempts = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local LEVEL = 4398046511104 -- ms of a level of priority: 139 years
local STEP = 100 -- jobs that are put back in one call at most
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)

local function put_back(from)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', from, '-inf', now_ms, 'LIMIT', 0, STEP)) do
    local due = tonumber(redis.call('ZSCORE', from, id))
    redis.call('ZREM', from, id)
    local packed = redis.call('HGET', metas, id)
    if packed then
      local meta = cmsgpack.unpack(packed)
      meta[4] = ''
      if from == claimed and meta[1] >= attempts then
        meta[5] = 'its claims ended unanswered'
        redis.call('ZADD', dead, now_ms, id)
      else
        redis.call('ZADD', ready, string.format('%.0f', (255 - meta[2]) * LEVEL + due), id)
      end
      redis.call('HSET', metas, id, cmsgpack.pack(meta))
    end
  end
end
put_back(delayed)
put_back(claimed)

local found = {-1}
for _, id in ipairs(redis.call('ZRANGE', ready, 0, most - 1)) do
  redis.call('ZREM', ready, id)
  local packed, payload = redis.call('HGET', metas, id), redis.call('HGET', payloads, id)
  if packed and payload then
    local meta = cmsgpack.unpack(packed)
    meta[1], meta[3], meta[4] = meta[1] + 1, math.max(meta[3] + 1, now), token
    redis.call('HSET', metas, id, cmsgpack.pack(meta))
    redis.call('ZADD', claimed, now_ms + visibility, id)
    for _, value in ipairs({id, meta[1], meta[3], payload}) do found[#found + 1] = value end
  end
end
if #found == 1 then
  for _, set in ipairs({delayed, claimed}) do
    local first = tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2])
    if first then
      local wait = math.max(first - now_ms, 0)
      if found[1] < 0 or wait < found[1] then found[1] = wait end
    end
  end
end
return found
