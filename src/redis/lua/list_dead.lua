-- list_dead.lua: lists jobs that have died, the last first.
--
-- KEYS[1]  metas          hash: of each job its attempts, priority, last fence, token and reason of death, packed
-- KEYS[2]  payloads       hash: what jobs carry, by id
-- KEYS[3]  dead           sorted set: ids of jobs that have died, by that time (ms)
-- ARGV[1]  most           jobs
-- returns  of each job its id, attempts, reason and payload
local metas, payloads, dead = KEYS[1], KEYS[2], KEYS[3]
local most = tonumber(ARGV[1])
local found = {}
for _, id in ipairs(redis.call('ZREVRANGE', dead, 0, most - 1)) do
  local packed, payload = redis.call('HGET', metas, id), redis.call('HGET', payloads, id)
  if packed and payload then
    local meta = cmsgpack.unpack(packed)
    for _, value in ipairs({id, meta[1], meta[5], payload}) do found[#found + 1] = value end
  end
end
return found
