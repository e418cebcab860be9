-- What decide.lua and settle.lua begin with: the frame, the time, and how windows and buckets are read and kept.

local frame = cmsgpack.unpack(ARGV[1])
local now = frame[1]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local now_ms = math.floor(now / 1000)
local SUM = 4294967296

-- A fixed window in one number: 2^52, plus its end (ms, modulo 2^35) * 2^17, plus the units used. They may be so many
-- that as many again can be added, before they are taken back.
local PACKED, YEAR, COUNT, MOST_PACKED = 4503599627370496, 34359738368, 131072, 65535
local LONGEST = 31622400000 -- ms, 366 days; an end that seems further ahead lies in the past
local SLACK = 1000 -- ms that such a key outlives its window, by clocks that may differ

-- Returns the units used in a window and the ms left of it, -1 if a lifetime that should tell is lost.
local function window_of(key, value)
  if value < PACKED then return value, redis.call('PTTL', key) end
  local used = (value - PACKED) % COUNT
  local left = ((value - PACKED - used) / COUNT - now_ms) % YEAR
  if left > LONGEST or value >= 2 * PACKED then left = 0 end
  return used, left
end

-- Returns a window that ends in `left` ms.
local function packed(used, left)
  return PACKED + (now_ms + left) % YEAR * COUNT + used
end

local ERA, FIRST = 1e15, 1e13 -- tenths of us; an era begins with FIRST, so that no small number is a time in it
local LATEST = ERA * 3 / 4 -- what is further ahead lies in the past: keys do not outlive their time by long
local SINCE_1970 = 1.7e15 -- us; what is below counts tenths of us in an era
local SPAN = 4194304 -- us
local era_now = FIRST + now % (ERA / 10) * 10

-- Returns the lifetime, in ms, of a bucket that is full at `value` on a clock of `scale` units per us.
local function lifetime(value, clock, scale)
  local span = SPAN * scale
  return math.ceil((value - value % span + span - clock) / (1000 * scale))
end

-- Returns the time until a bucket that holds `old` is full, in units of `scale` per us, whichever clock wrote it.
local function level_of(old, scale, capacity)
  local level
  if old < FIRST then
    level = 0
  elseif scale == 1 and old < SINCE_1970 and now >= SINCE_1970 then
    level = (old - era_now) % ERA
    if level > LATEST then level = 0 end
    level = math.ceil(level / 10)
  elseif scale == 1 then
    level = old - now
  elseif old >= SINCE_1970 then
    level = (old - now) * 10
  else
    level = (old - era_now) % ERA
    if level > LATEST then level = 0 end
  end
  return math.min(math.max(0, level), 2 * capacity)
end

-- Returns the units of a counter's open window and of the one before it, when that opened, and whether a clock that was
-- set back since had left it in the future: then all of it counts from now.
local function counter_of(value, window)
  local opened, current, before
  if type(value) == 'string' then opened, current, before = string.match(value, '^(%d+):(%d+):(%d+)$') end
  opened, current, before = tonumber(opened), tonumber(current), tonumber(before)
  if not opened or opened > PACKED or current >= SUM or before >= SUM then return 0, 0, now_ms, false end
  if opened > now_ms then return 0, math.min(current + before, SUM - 1), now_ms, true end
  if now_ms >= opened + 2 * window then return 0, 0, now_ms, false end
  if now_ms >= opened + window then opened, current, before = opened + window, 0, current end
  if current == 0 and before == 0 then opened = now_ms end
  return current, before, opened, false
end

-- Returns what a counter's window before still counts, of so many units.
local function faded(before, opened, window)
  return math.ceil(before * math.ceil((opened + window - now_ms) * 65536 / window) / 65536)
end

-- Keeps a counter for as long as something in it counts.
local function keep_counter(key, current, before, opened, window)
  local text = string.format('%.0f:%.0f:%.0f', opened, current, before)
  redis.call('SET', key, text, 'PX', opened + 2 * window - now_ms + SLACK)
end

-- Returns what a string holds if it is an integer, and nothing else.
local function integer(value)
  return type(value) == 'string' and string.find(value, '^%-?%d+$') and tonumber(value)
end

