-- settle.lua: changes charges to their true cost; an expired receipt changes nothing.
--
-- KEYS[i]  state          one key a charge, in the order of the frame; decide.lua tells what they hold
-- ARGV[1]  frame          MessagePack array of integers:
--                         now (us, 0: the server's), and for each charge one of
--                           1, end of its window (ms), how far a lifetime may be off that (ms), units to add
--                           2, its time (us), tie, units charged, true units, window (us)
--                           4, end of its window (ms), units to add, window (ms)
--                           3, its arrival, time to add, capacity, units per us    (times in these units)
-- returns  now (us)

local at = 2
for k = 1, #KEYS do
  local key, kind = KEYS[k], frame[at]

  if kind == 1 then
    local ends, off_by, more = frame[at + 1], frame[at + 2], frame[at + 3]
    at = at + 4
    local value = integer(redis.pcall('GET', key))
    local used, left = 0, 0
    if value then used, left = window_of(key, value) end
    if left > 0 and math.abs(now_ms + left - ends) <= off_by then
      local settled = math.min(math.max(0, used + more), SUM - 1)
      if value < PACKED or settled <= MOST_PACKED then
        redis.call('INCRBY', key, settled - used)
      else
        redis.call('SET', key, settled, 'PX', left)
      end
    end

  elseif kind == 2 then
    local time, tie, charged, cost, window = frame[at + 1], frame[at + 2], frame[at + 3], frame[at + 4], frame[at + 5]
    at = at + 6
    local function name(units)
      if tie == 0 and units == 1 then return string.format('%.0f', time) end
      return string.format('%.0f:%d:%.0f', time, tie, units)
    end
    local found = redis.pcall('ZMSCORE', key, '#', name(charged))
    if not found.err and found[1] and found[2] and time > now - window then
      local packed = -tonumber(found[1])
      local used = packed % SUM
      local others = math.max(0, used - charged)
      cost = math.min(cost, SUM - 1 - others)
      redis.call('ZREM', key, name(charged))
      if cost > 0 then redis.call('ZADD', key, time, name(cost)) end
      redis.call('ZADD', key, -(packed - used + others + cost), '#')
    end

  elseif kind == 4 then
    local ends, more, window = frame[at + 1], frame[at + 2], frame[at + 3]
    at = at + 4
    local current, before, opened = counter_of(redis.pcall('GET', key), window)
    local settled = true
    if current == 0 and before == 0 then settled = false
    elseif ends == opened + window then current = math.min(math.max(0, current + more), SUM - 1)
    elseif ends == opened then before = math.min(math.max(0, before + more), SUM - 1)
    else settled = false end
    if settled then keep_counter(key, current, before, opened, window) end

  else
    local arrival, more, capacity, scale = frame[at + 1], frame[at + 2], frame[at + 3], frame[at + 4]
    at = at + 5
    local clock = scale == 1 and now or era_now
    local level = level_of(integer(redis.pcall('GET', key)) or 0, scale, capacity)
    -- How long the charge alone has still to refill; an arrival in an era is told from one in the past.
    local unfilled = arrival - clock
    if scale ~= 1 then
      unfilled = unfilled % ERA
      if unfilled > LATEST then unfilled = unfilled - ERA end
    end
    local settled = level
    if more < 0 then
      settled = math.max(0, level - math.min(-more, math.max(0, unfilled)))
    elseif unfilled + more > 0 then
      if level == 0 then settled = unfilled + more else settled = level + more end
      settled = math.min(settled, math.max(level, 2 * capacity))
    end
    if settled ~= level then
      redis.call('SET', key, clock + settled, 'PX', lifetime(clock + settled, clock, scale))
    end
  end
end

return now
