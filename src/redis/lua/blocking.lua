-- What decide.lua, block.lua and strike.lua begin with: how who is blocked, and who was refused how often, is kept.

-- Blocks a subject under one policy for a time (us), or not any more if that is 0.
local function keep_block(key, flag, now, policy, long)
  local found = redis.pcall('GET', key)
  local blocks, last = {}, 0
  local function add(name, ends)
    blocks[#blocks + 1] = string.format('%s %.0f', name, ends)
    last = math.max(last, ends)
  end
  if type(found) == 'string' then
    for name, ends in string.gmatch(found, '([%w._-]+) (%d+)') do
      if name ~= policy and tonumber(ends) > now then add(name, tonumber(ends)) end
    end
  end
  if long > 0 then add(policy, now + long) end

  if #blocks == 0 then
    redis.call('DEL', key)
  else
    local lifetime = math.ceil((last - now) / 1000)
    redis.call('SET', key, table.concat(blocks, ' '), 'PX', lifetime)
    if flag and redis.call('PTTL', flag) < lifetime then redis.call('SET', flag, 1, 'PX', lifetime) end
  end
end

-- Counts a refusal; returns for how long (us) the subject is to be blocked, 0 if it is not yet.
local function strike(key, now, after, within, block, up_to)
  local found = redis.pcall('GET', key)
  local count, ends, last, till
  if type(found) == 'string' then count, ends, last, till = string.match(found, '^(%d+) (%d+) (%d+) (%d+)$') end
  count, ends, last, till = tonumber(count) or 0, tonumber(ends) or 0, tonumber(last) or 0, tonumber(till) or 0
  -- What lies further ahead than it can was left there by a clock that was set back, or by other numbers.
  if ends <= now or ends > now + within then count, ends = 0, now + within end
  till = math.min(till, now + last + up_to)
  if till <= now then last, till = 0, 0 end
  count = count + 1
  local long = 0
  if count >= after then
    long = last == 0 and block or math.min(math.max(2 * last, block), up_to)
    count, ends, last, till = 0, 0, long, now + long + up_to
  end
  local lifetime = math.ceil((math.max(ends, till) - now) / 1000)
  redis.call('SET', key, string.format('%.0f %.0f %.0f %.0f', count, ends, last, till), 'PX', lifetime)
  return long
end

