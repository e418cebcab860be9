-- extend.lua: lets leases last longer that their tokens still hold; makes none.
--
-- KEYS[i]    leases         strings: token, fence, since when (us) and label of the holder
-- KEYS[n+i]  fence counters integers: the last fence of each name
-- ARGV[i]    tokens
-- ARGV[n+i]  ttls           ms
-- returns    of each lease 1 if it was held, else 0
local count = #KEYS / 2
local DAY = 86400000 -- ms
local held = {}
for i = 1, count do
  local lease, counter, token, ttl = KEYS[i], KEYS[count + i], ARGV[i], ARGV[count + i]
  local value = redis.call('GET', lease)
  if value and string.match(value, '^(%x+) ') == token then
    redis.call('PEXPIRE', lease, ttl)
    -- Outlives a lease that is held for days.
    if redis.call('PTTL', counter) < DAY / 2 then redis.call('PEXPIRE', counter, DAY) end
    held[i] = 1
  else
    held[i] = 0
  end
end
return held
