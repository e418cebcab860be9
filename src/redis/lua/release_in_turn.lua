-- release_in_turn.lua: ends a lease that a token still holds, or its place among the waiters, and tells who is next.
--
-- KEYS[1]  lease          string: token, fence, since when (us) and label of the holder
-- KEYS[2]  queue          sorted set: waiters' tokens by the order in which they came
-- KEYS[3]  places         sorted set: the same tokens by the time (ms) until which their places are kept
-- ARGV[1]  token
-- ARGV[2]  channel        where waiters are told
-- ARGV[3]  name           as they are told
-- returns  1 if it was held, else 0
local lease, queue, places = KEYS[1], KEYS[2], KEYS[3]
local token, channel, name = ARGV[1], ARGV[2], ARGV[3]
local STEP = 100 -- places that lapse in one call at most
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function leave(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', places, waiter)
end
for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', places, '-inf', now_ms, 'LIMIT', 0, STEP)) do leave(waiter) end
local was_head = redis.call('ZRANGE', queue, 0, 0)[1] == token
leave(token)
local value = redis.call('GET', lease)
local held = value and string.match(value, '^(%x+) ') == token
if held then redis.call('DEL', lease) end
if held or (was_head and not value) then
  local head = redis.call('ZRANGE', queue, 0, 0)[1]
  -- Without the right to publish, waiters ask again by themselves.
  redis.pcall('PUBLISH', channel, head and name .. ' ' .. head or name)
end
return held and 1 or 0
