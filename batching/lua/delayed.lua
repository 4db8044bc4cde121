-- Requests that were put aside, in a sorted set by when their pause is over: <mark><message>. The mark is the rank of
-- the tier: as a digit where Celery's `eta` is waited for, as a letter from 'a' where it is tried again.

-- A pause before another try is 5 s at most (batching/policy/faults/retry.py). A longer one than this is not believed.
local LONGEST_PAUSE_MS = 60000

local function retry_mark(rank)
  return string.char(97 + rank)
end

local function is_retry(entry)
  return string.byte(entry) >= 97
end

local function rank_of_delayed(entry)
  return string.byte(entry) - (is_retry(entry) and 97 or 48)
end

-- Retries whose pause would last longer than any does: they were put aside before Redis' clock went back.
local function retries_from_the_future(delayed, now)
  local latest = string.format('(%.0f', now + LONGEST_PAUSE_MS)
  local late = redis.call('ZREVRANGEBYSCORE', delayed, '+inf', latest, 'LIMIT', 0, 128)
  local found = {}
  for i = 1, #late do
    if is_retry(late[i]) then found[#found + 1] = late[i] end
  end
  return found
end

-- Requests whose pause is over go to the head of their queue. `first` is the number of the first queue in KEYS.
local function wake_delayed(delayed, first, now)
  -- Nearly always: nothing is put aside, and an empty set does not exist.
  if redis.call('EXISTS', delayed) == 0 then return end
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', string.format('%.0f', now), 'LIMIT', 0, 128)
  if #due == 0 then due = retries_from_the_future(delayed, now) end
  for i = 1, #due do
    redis.call('RPUSH', KEYS[first + rank_of_delayed(due[i])], string.sub(due[i], 2))
    redis.call('ZREM', delayed, due[i])
  end
end
