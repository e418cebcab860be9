-- acquire_in_turn.lua: takes a lease in the order in which waiters came, or takes a place among them.
--
-- KEYS[1]  lease          string: token, fence, since when (us) and label of the holder
-- KEYS[2]  fence counter  integer: the last fence
-- KEYS[3]  queue          sorted set: waiters' tokens by the order in which they came
-- KEYS[4]  places         sorted set: the same tokens by the time (ms) until which their places are kept
-- ARGV[1]  token
-- ARGV[2]  ttl            ms
-- ARGV[3]  label
-- ARGV[4]  keep           ms for which the place is kept
-- returns  the fence, or 0, the ms until it may be worth while to ask again, and 0
local lease, counter, queue, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, ttl, label, keep = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local DAY = 86400000 -- ms
local STEP = 100 -- places that lapse in one call at most
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_ms = math.floor(now / 1000)

local function leave(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', places, waiter)
end
for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', places, '-inf', now_ms, 'LIMIT', 0, STEP)) do leave(waiter) end

local value = redis.call('GET', lease)
local holder, fence = string.match(value or '', '^(%x+) (%d+) ')
if holder == token then
  redis.call('PEXPIRE', lease, ttl)
  return {tonumber(fence)}
end

local head = redis.call('ZRANGE', queue, 0, 0)[1]
if not value and (not head or head == token) then
  leave(token)
  local last = redis.pcall('GET', counter)
  local minted = math.max((type(last) == 'string' and tonumber(last) or 0) + 1, now)
  redis.call('SET', counter, string.format('%.0f', minted), 'PX', math.ceil((minted - now) / 1000) + DAY)
  redis.call('SET', lease, string.format('%s %.0f %.0f %s', token, minted, now, label), 'PX', ttl)
  return {minted}
end

if not redis.call('ZSCORE', queue, token) then
  -- After the last, whatever the clock says.
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  redis.call('ZADD', queue, math.max(now, (tonumber(last) or 0) + 1), token)
end
redis.call('ZADD', places, now_ms + keep, token)
redis.call('PEXPIRE', queue, keep + 1000)
redis.call('PEXPIRE', places, keep + 1000)
local left
if value then
  left = redis.call('PTTL', lease)
  if left == -1 then -- its expiry was taken away: nothing is held for ever
    left = ttl
    redis.call('PEXPIRE', lease, left)
  end
else
  left = tonumber(redis.call('ZSCORE', places, head) or now_ms) - now_ms
end
return {0, math.max(left, 0), 0}
