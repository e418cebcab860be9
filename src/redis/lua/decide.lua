-- decide.lua: decides on requests; each charges all of its demands, or none of them.
--
-- KEYS[i]  state, blocks  one state a demand, in the order of the frame, and behind them, for each request,
--                         the blocks of its subject: once if all its demands share it, else one a demand
-- ARGV[1]  frame          MessagePack array of integers:
--                         now (us, 0: the server's), number of requests, number of states, and for each
--                         request its number of demands, how often it is made, its number of blocks, and for
--                         each demand one of
--                           1, cost, limit, window (ms), 1 if aligned
--                           2, cost, limit, window (us)
--                           3, cost, capacity, step, units per us    (costs and times in these units)
-- returns  now (us), and for each demand, as it was before this call,
--                           fixed window    units used, ms left
--                           sliding window  units used, us to the next unit, to none used, to this cost, tie
--                           token bucket    time until full
--                         where the sliding window's times, and they alone, are those after the charge;
--                         in front of a request with a demand that is blocked: -1, and for each demand for
--                         how long (us); a text in place of all that for a request that could not be decided
--
-- The caller repeats the sum "used + cost <= limit" to learn what was admitted: the numbers are the verdict.
-- A request that is made several times has one demand at a cost above zero, and is admitted as often as it fits. A
-- sliding window answers each time until it refuses.
--
-- Fixed window:   an integer, the units used. The key's lifetime is the window.
-- Sliding window: a sorted set. Members are charges: "<us>" for one unit, "<us>:<tie>:<units>" else, with their
--                 time as score. Two members head it with negative scores: "@" is minus the time of the newest
--                 charge, "#" is minus (ties * 2^32 + units used).
-- Token bucket:   an integer, the time at which the bucket is full again. Slow buckets count us since 1970, fast
--                 ones tenths of us in an era of 10^14 us, so that both stay below 2^53; the size of the number
--                 tells which. A key lives at least to the next whole 2^20 us after that time, by whichever
--                 policy it was written, so that moving the time within such a span need not touch the lifetime.
--
-- A charge is written first and taken back if it does not fit: that is one command for a token bucket, and two
-- for a window, in the usual case.

local now_ms = math.floor(now / 1000)
local EXACT = 9007199254740992 -- 2^53
local MOST_TIES = 2097151
local TRIM, WALK, MOVE = 1000, 64, 128

-- What blocks subjects; hardly ever anything.
local blocks = redis.call('MGET', unpack(KEYS, frame[3] + 1))

local any_blocks = false
for i = 1, #KEYS - frame[3] do any_blocks = any_blocks or blocks[i] end

local reply, told = { now }, 1
local key_at, block_at, at = 0, 0, 4
-- Of the request under way: its demands, how often it is made, where they begin, and whether it may pass.
local demands, times, first_at, admitted
-- What INCRBY has answered already for the only demand of the request under way.
local added
-- Decides on the request at `at`; goes on behind one that failed. Made by the first request that needs them.
local request, skip

-- Makes what decides on requests of any kind; most need none of it.
local function prepare()
  -- Of each demand: the state before, whether it began anew, and what is to be done when all are admitted.
  local was, left, began, member, amount = {}, {}, {}, {}, {}
  local sum, ties, last, oldest, worth, gone = {}, {}, {}, {}, {}, {}
  local renew, charged = {}, {}

  -- Returns for how long a demand is blocked.
  local function blocked_for(key, found)
    local policy = string.match(key, '}:%l:([%w._-]+):')
    for name, ends in string.gmatch(found, '([%w._-]+) (%d+)') do
      if name == policy then return math.max(0, tonumber(ends) - now) end
    end
    return 0
  end

  -- Returns the units that a charge in a sorted set is worth.
  local function units_of(member)
    if not string.find(member, ':', 1, true) then return 1 end
    return tonumber(string.match(member, ':(%d+)$')) or 1
  end

  -- Returns when `units` have left a sorted set, by the charges from rank `from` on.
  local function left_by(key, from, units)
    local rows = redis.call('ZRANGE', key, from, from + math.min(units, WALK) - 1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      local worth = units_of(rows[i])
      if units <= worth then return math.min(tonumber(rows[i + 1]), now) end
      units = units - worth
    end
    local rank = from + WALK + units - 1
    local row = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
    if #row == 0 then row = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES') end
    return math.min(tonumber(row[2]), now)
  end

  -- Returns true if an error tells that a key holds what no limiter wrote, so that the charge may replace it.
  local function is_foreign(reply)
    local text = reply.err
    return string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'not an integer', 1, true)
      or string.find(text, 'overflow', 1, true)
  end

  -- Takes back what a demand has charged.
  local function undo(k, key, kind, cost, window)
    if began[k] then
      redis.call('DEL', key)
    elseif kind == 2 then
      redis.call('ZREM', key, member[k])
      redis.call('ZADD', key, -(ties[k] * SUM + sum[k]), '#', -last[k], '@')
      if renew[k] then redis.call('PEXPIRE', key, math.ceil(window / 1000)) end
    else
      redis.call('DECRBY', key, cost)
    end
  end

  -- Decides on the request at `at`.
  function request()
    demands, times = frame[at], frame[at + 1]
    local own_blocks = frame[at + 2]
    first_at = at + 3
    local first_key, blocked = key_at, nil
    admitted = true

    at = first_at
    for d = 1, demands do
      local k = key_at + d
      local key, kind, cost = KEYS[k], frame[at], frame[at + 1]
      charged[k] = nil
      local found = any_blocks and blocks[block_at + math.min(d, own_blocks)]
      if found then
        local long = blocked_for(key, found)
        if long > 0 then
          -- Who is blocked only looks.
          blocked = blocked or {}
          blocked[d], admitted, cost = long, false, 0
        end
      end

      if kind == 1 then
        local limit, window, aligned = frame[at + 2], frame[at + 3], frame[at + 4] == 1
        if aligned then window = window - now_ms % window end
        at = at + 5
        local used, ttl = 0, 0
        if cost == 0 then
          local value = redis.pcall('GET', key)
          if type(value) == 'table' and not is_foreign(value) then error(value.err, 0) end
          used = integer(value) or 0
          ttl = used > 0 and redis.call('PTTL', key) or 0
          if ttl < 0 or ttl > window then ttl = window end
          if ttl == 0 then used = 0 end
        else
          local all = cost * times
          local value = added or redis.pcall('INCRBY', key, all)
          added = nil
          local foreign = type(value) ~= 'number'
          if foreign then
            if not is_foreign(value) then error(value.err, 0) end
          else
            -- Charged from here on, whatever fails next.
            charged[k], began[k] = true, value == all
            used, ttl = value - all, redis.call('PTTL', key)
          end
          if used < 0 or ttl == 0 or (ttl < 0 and used == 0) then
            used, ttl = 0, 0
          elseif ttl < 0 or ttl > window then
            ttl = window
            redis.call('PEXPIRE', key, ttl)
          end
          began[k] = ttl == 0
          local fit = all
          if used + all > limit then fit = math.floor((limit - used) / cost) * cost end
          if fit > 0 then
            charged[k] = true
            if ttl == 0 and aligned and frame[1] == 0 then
              -- To the millisecond: a lifetime would count from when the script began, before we read the clock.
              redis.call('SET', key, fit, 'PXAT', now_ms + window)
            elseif ttl == 0 then redis.call('SET', key, fit, 'PX', window)
            elseif fit < all then redis.call('DECRBY', key, all - fit) end
          else
            admitted, charged[k] = false, nil
            if foreign then -- it stays as it is until a charge replaces it
            elseif ttl == 0 then redis.call('DEL', key)
            else redis.call('DECRBY', key, all) end
          end
        end
        was[k], left[k] = math.min(used, SUM - 1), ttl

      elseif kind == 2 then
        local limit, window = frame[at + 2], frame[at + 3]
        at = at + 4
        local used, tie, newest, mended = 0, 0, 0, false
        local head = redis.pcall('ZMSCORE', key, '#', '@')
        if head.err then
          if not is_foreign(head) then error(head.err, 0) end
        elseif head[1] and head[2] then
          local packed, time = -tonumber(head[1]), -tonumber(head[2])
          if packed >= 0 and packed < EXACT and time >= 0 and time < EXACT then
            tie = math.floor(packed / SUM)
            used, newest = packed - tie * SUM, time
          end
        end
        if newest > now and cost > 0 then
          -- The clock was set back: what lies in the future counts from now.
          local after = string.format('(%.0f', now)
          local future = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, MOVE + 1)
          local moved = 0
          for i = 1, #future do moved = moved + units_of(future[i]) end
          if #future > MOVE then
            moved = used
            redis.call('DEL', key)
          end
          if moved > 0 then
            tie = tie % MOST_TIES + 1
            redis.call('ZADD', key, now, string.format('%.0f:%d:%.0f', now, tie, moved))
          end
          redis.call('ZREMRANGEBYSCORE', key, after, '+inf')
          newest, mended = now, true
        end

        local cutoff, trimmed, from, front, front_worth = now - window, 0, 2, nil, 0
        if newest <= cutoff then
          used, began[k] = 0, true
        else
          began[k] = false
          local step = 2
          repeat
            local rows = redis.call('ZRANGE', key, 2 + trimmed, 1 + trimmed + step, 'WITHSCORES')
            for i = 1, #rows, 2 do
              local time = tonumber(rows[i + 1])
              if time > cutoff or trimmed == TRIM then
                front, front_worth = math.min(time, now), units_of(rows[i])
                break
              end
              trimmed = trimmed + 1
              used = math.max(0, used - units_of(rows[i]))
            end
            local ended = #rows < 2 * step
            step = WALK
          until front or ended
          if cost == 0 then from = 2 + trimmed end
        end

        sum[k], last[k], oldest[k], worth[k], gone[k] = used, newest, front, front_worth, from
        if cost > 0 then
          if used + cost <= limit then
            charged[k] = true
            local mine = 0
            if now <= newest then
              tie = tie % MOST_TIES + 1
              mine = tie
            end
            local name = now
            if mine > 0 or cost > 1 then name = string.format('%.0f:%d:%.0f', now, mine, cost) end
            if began[k] then redis.call('DEL', key) end
            redis.call('ZADD', key, -(tie * SUM + used + cost), '#', -now, '@', now, name)
            member[k], was[k] = name, mine
          else
            admitted = false
            if mended or trimmed > 0 then redis.call('ZADD', key, -(tie * SUM + used), '#', -newest, '@') end
            if mended then redis.call('PEXPIRE', key, math.ceil(window / 1000)) end
          end
          -- After the sum was written, so that a server that is out of memory has refused that first.
          if trimmed > 0 then redis.call('ZREMRANGEBYRANK', key, 2, 1 + trimmed) end
          ties[k], renew[k] = tie, mended
        end

      else
        local capacity, step, scale = frame[at + 2], frame[at + 3], frame[at + 4]
        at = at + 5
        local clock = scale == 1 and now or era_now
        local value, old
        local all = cost * times
        if cost == 0 then
          value = redis.pcall('GET', key)
          if type(value) == 'table' and not is_foreign(value) then error(value.err, 0) end
          old = integer(value) or 0
        else
          value = added or redis.pcall('INCRBY', key, all)
          added = nil
          if type(value) == 'number' then
            old = value - all
            -- Charged from here on, whatever fails next.
            charged[k] = true
          elseif not is_foreign(value) then
            error(value.err, 0)
          end
        end
        local level = (old or 0) - clock
        renew[k], began[k] = nil, old == 0
        if old and cost > 0 and level >= 0 and level + all <= capacity then
          if value % step < all then renew[k] = lifetime(value, clock, scale) end
        else
          level = level_of(old or 0, scale, capacity)
          if cost == 0 then -- it is left as it is
          elseif level + cost <= capacity then
            charged[k] = true
            began[k] = level == 0
            value = clock + level + math.min(times, math.floor((capacity - level) / cost)) * cost
            redis.call('SET', key, value, 'PX', lifetime(value, clock, scale))
          else
            admitted, charged[k] = false, nil
            if not old then -- it stays as it is until a charge replaces it
            elseif old == 0 then redis.call('DEL', key)
            elseif level == 0 or old == clock + level then redis.call('DECRBY', key, all)
            else redis.call('SET', key, clock + level, 'PX', lifetime(clock + level, clock, scale)) end
          end
        end
        was[k] = level
      end
    end

    -- All are known: finish what was admitted, or take back what was charged, and tell.
    if blocked then
      told = told + 1
      reply[told] = -1
      for d = 1, demands do
        told = told + 1
        reply[told] = blocked[d] or 0
      end
    end
    at = first_at
    for d = 1, demands do
      local k = first_key + d
      local key, kind, cost = KEYS[k], frame[at], frame[at + 1]
      if blocked and blocked[d] then cost = 0 end
      if charged[k] and not admitted then undo(k, key, kind, cost, frame[at + 3]) end

      if kind == 1 then
        at = at + 5
        reply[told + 1], reply[told + 2] = was[k], left[k]
        told = told + 2

      elseif kind == 2 then
        local limit, window = frame[at + 2], frame[at + 3]
        at = at + 4
        local used, newest, front, front_worth = sum[k], last[k], oldest[k], worth[k]
        told = told + 1
        reply[told] = used
        if charged[k] and admitted then
          redis.call('PEXPIRE', key, math.ceil(window / 1000))
          if not front then front, front_worth = now, cost end
          used, newest = used + cost, now
        end
        local next_unit, none_used, this_cost = 0, 0, 0
        if used > 0 then
          local function wait(units)
            local time = front
            if not time or units > front_worth then time = left_by(key, gone[k], units) end
            return math.max(1, time + window - now)
          end
          next_unit = wait(math.max(1, used - limit + 1))
          none_used = math.max(1, math.min(newest, now) + window - now)
          if cost > 0 and cost <= limit and used + cost > limit then this_cost = wait(used + cost - limit) end
        end
        reply[told + 1], reply[told + 2] = next_unit, none_used
        reply[told + 3], reply[told + 4] = this_cost, was[k] or 0
        told = told + 4

      else
        at = at + 5
        if charged[k] and admitted and renew[k] then redis.call('PEXPIRE', key, renew[k]) end
        told = told + 1
        reply[told] = was[k]
      end
    end
    key_at, block_at = key_at + demands, block_at + own_blocks
  end

  -- Goes on behind a request that failed: takes back what it had charged, and tells why.
  function skip(why, before)
    for i = told, before + 1, -1 do reply[i] = nil end
    told = before
    at = first_at
    for d = 1, demands do
      local k, kind = key_at + d, frame[at]
      if charged[k] then pcall(undo, k, KEYS[k], kind, frame[at + 1] * times, frame[at + 3]) end
      at = at + (kind == 2 and 4 or 5)
    end
    key_at, block_at = key_at + demands, block_at + frame[first_at - 1]
    told = told + 1
    reply[told] = why
  end
end

-- Decides on a request of one demand in the usual case: there is room for it, and nothing to heal. Returns false if
-- it is not that case; nothing is lost then, and what fails here is tried again by what can take it back.
local function is_usual()
  local kind, cost = frame[at + 3], frame[at + 4]
  if frame[at] ~= 1 or kind == 2 or cost == 0 or any_blocks then return false end
  local key, all = KEYS[key_at + 1], cost * frame[at + 1]
  local value = redis.pcall('INCRBY', key, all)
  added = value
  if type(value) ~= 'number' then return false end
  local done

  if kind == 3 then
    local capacity, scale = frame[at + 5], frame[at + 7]
    local clock = scale == 1 and now or era_now
    local level = value - all - clock
    if level < 0 then -- full, if it is none of the other clock's
      local old = value - all
      if all > capacity then return false end
      if scale == 1 and old ~= 0 and old < SINCE_1970 then return false end
      if scale ~= 1 and old ~= 0 and (old < FIRST or old >= SINCE_1970 or level % ERA <= LATEST) then return false end
      level, value = 0, clock + all
      done = redis.pcall('SET', key, value, 'PX', lifetime(value, clock, scale))
    elseif level + all > capacity then
      return false
    elseif value % frame[at + 6] < all then
      done = redis.pcall('PEXPIRE', key, lifetime(value, clock, scale))
    end
    if type(done) == 'table' and done.err then return false end
    told = told + 1
    reply[told] = level
  else
    local ttl, window, aligned = redis.pcall('PTTL', key), frame[at + 6], frame[at + 7] == 1
    local used = value - all
    if type(ttl) ~= 'number' or used < 0 or value > frame[at + 5] then return false end
    if ttl == -1 and used == 0 and not aligned then -- the window opens
      done = redis.pcall('SET', key, all, 'PX', window)
      if done.err then return false end
      ttl = 0
    else
      if aligned then window = window - now_ms % window end
      if ttl <= 0 or ttl > window then return false end
    end
    reply[told + 1], reply[told + 2] = used, ttl
    told = told + 2
  end
  added = nil
  at, key_at, block_at = at + 8, key_at + 1, block_at + 1
  return true
end

local done, before = 0, 1
local function run()
  while done < frame[2] do
    local start, key_start, block_start = at, key_at, block_at
    local log, left_to_do = frame[at + 3] == 2, frame[at + 1]
    repeat
      at, key_at, block_at, before = start, key_start, block_start, told
      if is_usual() then break end
      if not request then prepare() end
      request()
      left_to_do = left_to_do - 1
    until not log or left_to_do == 0 or not admitted
    done = done + 1
  end
end
repeat
  local fine, why = pcall(run)
  if not fine then
    why = tostring(type(why) == 'table' and why.err or why)
    -- A replica takes no charge of anybody: that is the whole call's failure.
    if string.find(why, 'READONLY', 1, true) then return redis.error_reply(string.match(why, 'READONLY.*')) end
    if not skip then prepare() end
    skip(why, before)
    done = done + 1
  end
until done == frame[2]

return reply
