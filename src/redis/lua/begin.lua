-- begin.lua: begins an attempt at something that is done once, or tells how things stand.
--
-- KEYS[1]  record         hash: t token, s state (r running, d done), u until when (us) the attempt lasts, a attempt,
--                         f fence, p print, o outcome
-- ARGV[1]  token
-- ARGV[2]  lease          ms for which the attempt lasts
-- ARGV[3]  retain         ms for which the record is kept after that
-- ARGV[4]  print          what all attempts should have in common
-- ARGV[5]  takeover       1 if an attempt may follow one that has lapsed, else 0
-- ARGV[6]  done           1 if it is done by having begun, else 0
-- ARGV[7]  outcome        what it came to then
-- returns  1, attempt, fence: begun; 2, ms left, print: another is at it; 3, outcome, print: done;
--          4, attempt, print: the last attempt has lapsed
local record = KEYS[1]
local token, lease, retain, print = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local takeover, done, outcome = ARGV[5] == '1', ARGV[6] == '1', ARGV[7]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local found = redis.call('HMGET', record, 't', 's', 'u', 'a', 'f', 'p', 'o')
local state, ends = found[2], tonumber(found[3] or 0)
local attempt, fence = tonumber(found[4] or 0), tonumber(found[5] or 0)
if state and found[1] ~= token then
  if state == 'd' then return {3, found[7], found[6]} end
  if ends > now then return {2, math.ceil((ends - now) / 1000), found[6]} end
  if not takeover then return {4, attempt, found[6]} end
end
if found[1] ~= token then
  attempt = attempt + 1
  fence = math.max(fence + 1, now)
end
if done then
  redis.call('HSET', record, 't', token, 's', 'd', 'a', attempt, 'f', string.format('%.0f', fence), 'p', print, 'o', outcome)
  redis.call('PEXPIRE', record, retain)
elseif state ~= 'd' then
  redis.call('HSET', record, 't', token, 's', 'r', 'u', string.format('%.0f', now + lease * 1000), 'a', attempt,
    'f', string.format('%.0f', fence), 'p', print)
  redis.call('PEXPIRE', record, lease + retain)
end
return {1, attempt, fence}
