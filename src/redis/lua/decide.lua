-- decide.lua: decides on requests; each charges all of its demands, or none of them.
--
-- KEYS[1]  flag           exists while anybody may be blocked
-- KEYS[i]  state, blocks, strikes
--                         one state a demand, in the order of the frame; behind them, if the caller believes that the
--                         flag exists or any demand escalates, for each request the blocks of its subject: once if all
--                         its demands share it, else one a demand; and at the end the strikes of each that escalates
-- ARGV[1]  frame          MessagePack array of integers:
--                         now (us, 0: the server's), number of states, a mark, number of blocks, and for each run of
--                         requests that differ in their keys alone: how many they are, how often each is made, the
--                         demands of each, the blocks of each, the strikes of each, and for each of the demands one of
--                           1, cost, limit, window (ms), 1 if aligned
--                           2, cost, limit, window (us)
--                           4, cost, limit, window (ms)
--                           3, cost, capacity, step, units per us    (costs and times in these units)
--                         with 16 added to its first number if it is in the shadow: it is charged if the others of
--                         its request are and it fits itself, and it decides nothing; or with 32 added, and behind
--                         its numbers after, within (us), block (us), up to (us): if it refuses, that is a strike, and
--                         so many of them within that time block the subject, twice as long as the last time
-- returns  now (us)       0 if the flag exists and no blocks were sent: nothing was done then
--          flag           1 if it exists, else 0
--          mark           as it came: whose answer this is
--          found          for each demand, as it was before this call,
--                           fixed window    units used, ms left
--                           sliding window  units used, us to the next unit, to none used, to this cost, tie
--                           sliding counter units used in the open window, in the one before, ms left
--                           token bucket    time until full
--                         where the sliding window's times, and they alone, are those after the charge;
--                         in front of a request with a demand that is blocked, or is from now on: -1, and for each
--                         demand for how long (us); a text in place of all that for a request that could not be decided
--
-- The caller repeats the sum "used + cost <= limit" to learn what was admitted: the numbers are the verdict.
-- A request that is made several times has one demand at a cost above zero, and is admitted as often as it fits. A
-- sliding window answers each time until it refuses.
--
-- Fixed window:   an integer: the units used and the window's end (common.lua tells how), or, where the limit is
--                 too large for that, the units used; the key's lifetime is the window then.
-- Sliding window: a sorted set. Members are charges: "<us>" for one unit, "<us>:<tie>:<units>" else, with their
--                 time as score. Two members head it with negative scores: "@" is minus the time of the newest
--                 charge, "#" is minus (ties * 2^32 + units used).
-- Sliding counter: "<when the window opened, ms>:<units used in it>:<units used in the one before>".
-- Token bucket:   an integer, the time at which the bucket is full again. Slow buckets count us since 1970, fast
--                 ones tenths of us in an era of 10^14 us, so that both stay below 2^53; the size of the number
--                 tells which. A key lives at least to the next whole 2^22 us after that time, by whichever
--                 policy it was written, so that moving the time within such a span need not touch the lifetime.
--
-- A charge is written first and taken back if it does not fit: that is one command in the usual case.

local EXACT = 9007199254740992 -- 2^53
local MOST_TIES = 2097151
local TRIM, WALK, MOVE = 1000, 64, 128
local SHADOW, ESCALATES = 16, 32
local call = redis.call

local states, first_strike = frame[2], frame[2] + 1 + frame[4]
local flag = call('EXISTS', KEYS[1])
local any_blocks, blocks = false, nil
if flag == 1 then
  if frame[4] == 0 then return { 0, flag, frame[3] } end
  blocks = call('MGET', unpack(KEYS, states + 2, first_strike))
  for i = 1, frame[4] do any_blocks = any_blocks or blocks[i] end
end

local reply, told = { now, flag, frame[3] }, 3
-- Where the run under way begins in the frame, how many of its requests are done, and what lies before the states, the
-- blocks and the strikes of the next.
local at, done, key_at, block_at, strike_at = 5, 0, 0, 0, 0
-- Of the request under way: how far the reply had come before it, whether it may pass, and what INCRBY has answered
-- already for its only demand.
local before, admitted, added
-- Decides on the next request, whatever it is; goes on behind one that failed. Made by the first that needs them.
local decide, skip

-- Returns how many numbers of the frame a demand is that begins with this one.
local function width(kind)
  return (kind % 2 == 0 and 4 or 5) + (kind >= ESCALATES and 4 or 0)
end

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

  -- Counts a refusal by a demand, and blocks its subject if that leads to it.
  local function escalate(p, state, blocks_of, strikes)
    local n = p + width(frame[p]) - 4
    local long = strike(strikes, now, frame[n], frame[n + 1], frame[n + 2], frame[n + 3])
    if long == 0 then return 0 end
    local key = KEYS[states + 1 + blocks_of]
    keep_block(key, KEYS[1], now, string.match(state, '}:%l:([%w._-]+):'), long)
    -- Later requests of this call see it too.
    reply[2], any_blocks, blocks = 1, true, blocks or {}
    local kept = call('GET', key)
    for i = 1, frame[4] do
      if KEYS[states + 1 + i] == key then blocks[i] = kept end
    end
    return long
  end

  -- Returns the units that a charge in a sorted set is worth.
  local function units_of(member)
    if not string.find(member, ':', 1, true) then return 1 end
    return tonumber(string.match(member, ':(%d+)$')) or 1
  end

  -- Returns when `units` have left a sorted set, by the charges from rank `from` on.
  local function left_by(key, from, units)
    local rows = call('ZRANGE', key, from, from + math.min(units, WALK) - 1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      local worth = units_of(rows[i])
      if units <= worth then return math.min(tonumber(rows[i + 1]), now) end
      units = units - worth
    end
    local rank = from + WALK + units - 1
    local row = call('ZRANGE', key, rank, rank, 'WITHSCORES')
    if #row == 0 then row = call('ZRANGE', key, -1, -1, 'WITHSCORES') end
    return math.min(tonumber(row[2]), now)
  end

  -- Returns true if an error tells that a key holds what no limiter wrote, so that the charge may replace it.
  local function is_foreign(reply)
    local text = reply.err
    return string.find(text, 'WRONGTYPE', 1, true) or string.find(text, 'not an integer', 1, true)
      or string.find(text, 'overflow', 1, true)
  end

  -- Returns what a key holds, or what it holds after a charge; nothing if no limiter wrote it.
  local function read(key, all)
    local value = added
    if all == 0 then
      value = redis.pcall('GET', key)
    elseif not added then
      value = redis.pcall('INCRBY', key, all)
    end
    added = nil
    if type(value) == 'table' then
      if not is_foreign(value) then error(value.err, 0) end
      return nil
    end
    if all == 0 then return integer(value) or nil end
    return value
  end

  -- Keeps a fixed window of which more than the units has changed.
  local function keep_window(key, used, left, limit, aligned)
    if limit <= MOST_PACKED and used <= MOST_PACKED then
      call('SET', key, packed(used, left), 'PX', left + SLACK)
    elseif aligned and frame[1] == 0 then
      -- To the millisecond: a lifetime would count from when the script began, before we read the clock.
      call('SET', key, used, 'PXAT', now_ms + left)
    else
      call('SET', key, used, 'PX', left)
    end
  end

  -- Takes back what a demand has charged.
  local function undo(k, key, kind, cost, window)
    if kind == 4 then
      -- It is written last; only a failure after that finds it written.
      if member[k] and began[k] then call('DEL', key)
      elseif member[k] then keep_counter(key, was[k], left[k], sum[k], window) end
    elseif began[k] then
      call('DEL', key)
    elseif kind == 2 then
      call('ZREM', key, member[k])
      call('ZADD', key, -(ties[k] * SUM + sum[k]), '#', -last[k], '@')
      if renew[k] then call('PEXPIRE', key, math.ceil(window / 1000)) end
    else
      call('DECRBY', key, cost)
    end
  end

  -- Charges all demands of the next request, or none, and tells what it found.
  local function request()
    local times, demands, own_blocks = frame[at + 1], frame[at + 2], frame[at + 3]
    local first_key, blocked = key_at, nil
    admitted = true

    local p = at + 5
    for d = 1, demands do
      local k, next_p = key_at + d, p + width(frame[p])
      local key, kind, cost = KEYS[k + 1], frame[p] % SHADOW, frame[p + 1]
      local decides = frame[p] % ESCALATES < SHADOW
      charged[k], member[k] = nil, nil
      local found = any_blocks and blocks[block_at + math.min(d, own_blocks)]
      if found then
        local long = blocked_for(key, found)
        if long > 0 then
          -- Who is blocked only looks.
          blocked = blocked or {}
          blocked[d], admitted, cost = long, admitted and not decides, 0
        end
      end
      local all = cost * times

      if kind == 1 then
        local limit, window, aligned = frame[p + 2], frame[p + 3], frame[p + 4] == 1
        if aligned then window = window - now_ms % window end
        local used, ttl, kept = 0, 0, true
        local value = read(key, all)
        -- Charged from here on, whatever fails next.
        if value and all > 0 then charged[k], began[k] = true, value == all end
        if value and (all > 0 or value ~= 0) then
          used, ttl = window_of(key, value - all)
          kept = value < PACKED or limit <= MOST_PACKED
        end
        if used < 0 or ttl == 0 or (ttl < 0 and used == 0) then
          used, ttl = 0, 0
        elseif ttl < 0 or ttl > window then
          ttl, kept = window, false
        end
        if all > 0 then
          began[k] = ttl == 0
          local fit = all
          if used + all > limit then fit = math.floor((limit - used) / cost) * cost end
          if fit > 0 then
            charged[k] = true
            if ttl == 0 then keep_window(key, fit, window, limit, aligned)
            elseif not kept then keep_window(key, used + fit, ttl, limit, aligned)
            elseif fit < all then call('DECRBY', key, all - fit) end
          else
            admitted, charged[k] = admitted and not decides, nil
            if not value then -- it stays as it is until a charge replaces it
            elseif ttl == 0 then call('DEL', key)
            elseif not kept then keep_window(key, used, ttl, limit, aligned)
            else call('DECRBY', key, all) end
          end
        end
        was[k], left[k] = math.min(used, SUM - 1), ttl

      elseif kind == 2 then
        local limit, window = frame[p + 2], frame[p + 3]
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
          local future = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, MOVE + 1)
          local moved = 0
          for i = 1, #future do moved = moved + units_of(future[i]) end
          if #future > MOVE then
            moved = used
            call('DEL', key)
          end
          if moved > 0 then
            tie = tie % MOST_TIES + 1
            call('ZADD', key, now, string.format('%.0f:%d:%.0f', now, tie, moved))
          end
          call('ZREMRANGEBYSCORE', key, after, '+inf')
          newest, mended = now, true
        end

        local cutoff, trimmed, from, front, front_worth = now - window, 0, 2, nil, 0
        if newest <= cutoff then
          used, began[k] = 0, true
        else
          began[k] = false
          local step = 2
          repeat
            local rows = call('ZRANGE', key, 2 + trimmed, 1 + trimmed + step, 'WITHSCORES')
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
            if began[k] then call('DEL', key) end
            call('ZADD', key, -(tie * SUM + used + cost), '#', -now, '@', now, name)
            member[k], was[k] = name, mine
          else
            admitted = admitted and not decides
            if mended or trimmed > 0 then call('ZADD', key, -(tie * SUM + used), '#', -newest, '@') end
            if mended then call('PEXPIRE', key, math.ceil(window / 1000)) end
          end
          -- After the sum was written, so that a server that is out of memory has refused that first.
          if trimmed > 0 then call('ZREMRANGEBYRANK', key, 2, 1 + trimmed) end
          ties[k], renew[k] = tie, mended
        end

      elseif kind == 4 then
        local limit, window = frame[p + 2], frame[p + 3]
        local value = redis.pcall('GET', key)
        if type(value) == 'table' and value.err and not is_foreign(value) then error(value.err, 0) end
        local current, before, opened, mended = counter_of(value, window)
        local used = current + faded(before, opened, window)
        was[k], left[k], sum[k], renew[k] = current, before, opened, mended and cost > 0
        if cost > 0 then
          local fit = math.min(times, math.floor((limit - used) / cost)) * cost
          if fit > 0 then
            charged[k], amount[k] = true, fit
            began[k] = current == 0 and before == 0
          else
            admitted = admitted and not decides
          end
        end

      else
        local capacity, step, scale = frame[p + 2], frame[p + 3], frame[p + 4]
        local clock = scale == 1 and now or era_now
        local value = read(key, all)
        local old = value and value - all
        -- Charged from here on, whatever fails next.
        charged[k] = all > 0 and value ~= nil
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
            call('SET', key, value, 'PX', lifetime(value, clock, scale))
          else
            admitted, charged[k] = admitted and not decides, nil
            if not old then -- it stays as it is until a charge replaces it
            elseif old == 0 then call('DEL', key)
            elseif level == 0 or old == clock + level then call('DECRBY', key, all)
            else call('SET', key, clock + level, 'PX', lifetime(clock + level, clock, scale)) end
          end
        end
        was[k] = level
      end
      p = next_p
    end

    -- Who refuses by itself charges nothing.
    if not admitted and frame[at + 4] > 0 then
      local strikes = first_strike + strike_at
      p = at + 5
      for d = 1, demands do
        if frame[p] >= ESCALATES then
          strikes = strikes + 1
          if not charged[key_at + d] and not (blocked and blocked[d]) then
            local state, blocks_of = KEYS[key_at + d + 1], block_at + math.min(d, own_blocks)
            -- Who cannot be counted is refused all the same.
            local counted, long = pcall(escalate, p, state, blocks_of, KEYS[strikes])
            if counted and long > 0 then
              blocked = blocked or {}
              blocked[d] = long
            end
          end
        end
        p = p + width(frame[p])
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
    p = at + 5
    for d = 1, demands do
      local k, next_p = first_key + d, p + width(frame[p])
      local key, kind, cost = KEYS[k + 1], frame[p] % SHADOW, frame[p + 1]
      if blocked and blocked[d] then cost = 0 end
      if charged[k] and not admitted then undo(k, key, kind, cost, frame[p + 3]) end

      if kind == 1 then
        reply[told + 1], reply[told + 2] = was[k], left[k]
        told = told + 2

      elseif kind == 2 then
        local limit, window = frame[p + 2], frame[p + 3]
        local used, newest, front, front_worth = sum[k], last[k], oldest[k], worth[k]
        told = told + 1
        reply[told] = used
        if charged[k] and admitted then
          call('PEXPIRE', key, math.ceil(window / 1000))
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

      elseif kind == 4 then
        local window = frame[p + 3]
        if charged[k] and admitted then
          keep_counter(key, was[k] + amount[k], left[k], sum[k], window)
          member[k] = true
        elseif renew[k] then
          keep_counter(key, was[k], left[k], sum[k], window)
        end
        reply[told + 1], reply[told + 2], reply[told + 3] = was[k], left[k], sum[k] + window - now_ms
        told = told + 3

      else
        if charged[k] and admitted and renew[k] then call('PEXPIRE', key, renew[k]) end
        told = told + 1
        reply[told] = was[k]
      end
      p = next_p
    end
  end

  -- Goes on to the next request.
  local function advance()
    key_at, block_at, strike_at = key_at + frame[at + 2], block_at + frame[at + 3], strike_at + frame[at + 4]
    done, before = done + 1, nil
  end

  function decide()
    local again = frame[at + 5] == 2 and frame[at + 1] or 1
    repeat
      before = told
      request()
      again = again - 1
    until again == 0 or not admitted
    advance()
  end

  function skip(why)
    for i = told, before + 1, -1 do reply[i] = nil end
    told = before
    local p = at + 5
    for d = 1, frame[at + 2] do
      local k, kind = key_at + d, frame[p] % SHADOW
      if charged[k] then pcall(undo, k, KEYS[k + 1], kind, frame[p + 1] * frame[at + 1], frame[p + 3]) end
      p = p + width(frame[p])
    end
    told = told + 1
    reply[told] = why
    advance()
  end
end

-- Decides on requests of one demand in the usual case: there is room for it, and nothing to heal. Hands over all
-- others; what fails here is tried again by what can take it back.
local function run()
  local ends = #frame
  while at < ends do
    local count, times, kind, cost = frame[at], frame[at + 1], frame[at + 5] % ESCALATES, frame[at + 6]
    local strikes = frame[at + 4]
    local all = cost * times
    local text = string.format('%.0f', all)
    if frame[at + 2] > 1 or cost == 0 or any_blocks then
      kind = nil
    end

    if kind == 1 then
      local limit, window, aligned = frame[at + 7], frame[at + 8], frame[at + 9] == 1
      if aligned then window = window - now_ms % window end
      local packs = limit <= MOST_PACKED
      local fresh
      while done < count and not any_blocks do
        local key = KEYS[key_at + 2]
        local value = call('INCRBY', key, text)
        added = value
        local old = value - all
        local used, ttl = window_of(key, old)
        if old == 0 and ttl == -1 and all <= limit and (packs or not aligned) then -- the window opens
          if packs then
            fresh = fresh or string.format('%.0f', packed(all, window))
            call('SET', key, fresh, 'PX', window + SLACK)
          else
            call('SET', key, text, 'PX', window)
          end
          ttl = 0
        elseif ttl <= 0 or ttl > window or used < 0 or used + all > limit or old >= PACKED and not packs then
          used = nil
        end
        if used then
          reply[told + 1], reply[told + 2] = used, ttl
          told, done, added = told + 2, done + 1, nil
          key_at, block_at, strike_at = key_at + 1, block_at + 1, strike_at + strikes
        else
          if not decide then prepare() end
          decide()
        end
      end

    elseif kind == 2 and all == 1 then
      local limit, window = frame[at + 7], frame[at + 8]
      local now_text, cutoff = string.format('%.0f', now), now - window
      local newest_text, life = '-' .. now_text, math.ceil(window / 1000)
      while done < count and not any_blocks do
        local key = KEYS[key_at + 2]
        local head = call('ZMSCORE', key, '#', '@')
        local used, newest, front, over
        if not head[1] and not head[2] then
          used, front, over = 0, now, 0
        elseif head[1] and head[2] then
          used, newest = -tonumber(head[1]), -tonumber(head[2])
          if newest < now and newest > cutoff then
            local rows, i = call('ZRANGE', key, '2', '3'), 1
            over, front = 0, tonumber(rows[1])
            while front and front <= cutoff do
              over, i = over + 1, i + 1
              if i > 2 and over <= WALK then rows, i = call('ZRANGE', key, 2 + over, 3 + over), 1 end
              front = tonumber(rows[i])
            end
          end
        end
        -- Ties, charges of several units, and many that are over are not usual.
        if front and used >= over and used - over < limit and used < SUM then
          used = used - over
          call('ZADD', key, '-' .. used + 1, '#', newest_text, '@', now_text, now_text)
          local answer = redis.pcall('PTTL', key)
          if type(answer) == 'number' and answer < life then answer = redis.pcall('PEXPIRE', key, life + life) end
          if over > 0 and type(answer) == 'number' then answer = redis.pcall('ZREMRANGEBYRANK', key, '2', 1 + over) end
          if type(answer) == 'table' then
            if newest then
              call('ZREM', key, now_text)
              call('ZADD', key, -used - over, '#', -newest, '@')
            else
              call('DEL', key)
            end
            error(answer.err, 0)
          end
          local next_unit = front + window - now
          reply[told + 1], reply[told + 2], reply[told + 3] = used, next_unit, window
          reply[told + 4], reply[told + 5] = used + 1 == limit and next_unit or 0, 0
          told, done = told + 5, done + 1
          key_at, block_at, strike_at = key_at + 1, block_at + 1, strike_at + strikes
        else
          if not decide then prepare() end
          decide()
        end
      end

    elseif kind == 4 then
      local limit, window = frame[at + 7], frame[at + 8]
      while done < count and not any_blocks do
        local key = KEYS[key_at + 2]
        local current, before, opened = counter_of(call('GET', key), window)
        if current + faded(before, opened, window) + all <= limit then
          keep_counter(key, current + all, before, opened, window)
          reply[told + 1], reply[told + 2], reply[told + 3] = current, before, opened + window - now_ms
          told, done = told + 3, done + 1
          key_at, block_at, strike_at = key_at + 1, block_at + 1, strike_at + strikes
        else
          if not decide then prepare() end
          decide()
        end
      end

    elseif kind == 3 then
      local capacity, step, scale = frame[at + 7], frame[at + 8], frame[at + 9]
      local clock = scale == 1 and now or era_now
      local full, life
      local since = clock + all - (clock + all) % (SPAN * scale)
      while done < count and not any_blocks do
        local key = KEYS[key_at + 2]
        local value = call('INCRBY', key, text)
        added = value
        local level = value - all - clock
        local usual = level >= 0 and level + all <= capacity
        if usual then
          if value % step < all then call('PEXPIRE', key, lifetime(value, clock, scale)) end
        elseif level < 0 and all <= capacity then -- full, if it is none of the other clock's
          local old = value - all
          if scale == 1 then usual = old == 0 or old >= SINCE_1970
          else usual = old == 0 or (old >= FIRST and old < SINCE_1970 and level % ERA > LATEST) end
          if usual and old >= since then
            -- Its lifetime reaches as far as it has to.
            call('INCRBY', key, string.format('%.0f', -level))
          elseif usual then
            full = full or string.format('%.0f', clock + all)
            life = life or string.format('%d', lifetime(clock + all, clock, scale))
            call('SET', key, full, 'PX', life)
          end
          if usual then
            level = 0
          end
        end
        if usual then
          told = told + 1
          reply[told] = level
          done, added = done + 1, nil
          key_at, block_at, strike_at = key_at + 1, block_at + 1, strike_at + strikes
        else
          if not decide then prepare() end
          decide()
        end
      end
    end

    while done < count do
      if not decide then prepare() end
      decide()
    end
    at, done = at + 5, 0
    for _ = 1, frame[at - 3] do at = at + width(frame[at]) end
  end
end

local fine, why
repeat
  fine, why = pcall(run)
  if not fine then
    if not decide then prepare() end
    local decided = false
    if not before then decided, why = pcall(decide) end
    if not decided then
      why = tostring(type(why) == 'table' and why.err or why)
      -- A replica takes no charge of anybody: that is the whole call's failure.
      if string.find(why, 'READONLY', 1, true) then return redis.error_reply(string.match(why, 'READONLY.*')) end
      skip(why)
    end
  end
until fine

return reply
