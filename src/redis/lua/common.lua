-- What decide.lua and settle.lua begin with: the frame, the time, and how a token bucket is read and kept.

local frame = cmsgpack.unpack(ARGV[1])
local now = frame[1]
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local ERA, FIRST = 1e15, 1e13 -- tenths of us; an era begins with FIRST, so that no small number is a time in it
local LATEST = ERA * 3 / 4 -- what is further ahead lies in the past: keys do not outlive their time by long
local SINCE_1970 = 1.7e15 -- us; what is below counts tenths of us in an era
local SPAN = 1048576 -- us
local SUM = 4294967296
local era_now = FIRST + now % (ERA / 10) * 10

-- Returns what a string holds if it is an integer, and nothing else.
local function integer(value)
  return type(value) == 'string' and string.find(value, '^%-?%d+$') and tonumber(value)
end

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

