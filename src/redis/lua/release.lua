-- release.lua: ends leases that a token still holds, and tells who waits for them.
--
-- KEYS[i]    leases         strings: token, fence, since when (us) and label of the holder; one for each name
-- ARGV[1]    token
-- ARGV[2i]   channels       where waiters of each name are told
-- ARGV[2i+1] names          as they are told
-- returns    how many were held
local token = ARGV[1]
local held = 0
for i = 1, #KEYS do
  local lease = KEYS[i]
  local value = redis.call('GET', lease)
  if value and string.match(value, '^(%x+) ') == token then
    redis.call('DEL', lease)
    -- Without the right to publish, waiters ask again by themselves.
    redis.pcall('PUBLISH', ARGV[2 * i], ARGV[2 * i + 1])
    held = held + 1
  end
end
return held
