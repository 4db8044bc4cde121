-- Outcomes of questions that others may ask, or have asked and wait for (batching/asked.py).
--
-- A kept answer is <edition>\n<bytes up to the task id>\n<those><what follows the task id>. Those who wait for one are in
-- a hash: task id → <rank><message>, and '*' → <id of the one that is computed>;<its rank>;<its deadline>.
local CACHED, EDITION, WAITING, CANCELLED, BELL, QUEUES = 4, 5, 6, 7, 8, 9
-- What an entry costs beside its bytes: two keys' names, a place in the index.
local OVERHEAD = 300
-- No answer may take more than this part of all room.
local LARGEST = 1 / 64

-- In bytes of results: when it is used up, one of those who still wait asks again, for the rest.
local MOST_AT_ONCE = 67108864

local claimed_ms, tiers = 0, {}
-- How many were stored, then who was settled beside the batch: <position of the one computed>;<s, x or c>;<rank>;<enqueued>;<result TTL>;<id>;<owner>
local others = {0}

local function read_asked(from)
  local asked, most = {}, tonumber(ARGV[from])
  claimed_ms = tonumber(ARGV[from + 1])
  for tier in string.gmatch(ARGV[from + 2], '[^;]+') do tiers[#tiers + 1] = tier end
  for at = from + 3, #ARGV, 9 do
    asked[ARGV[at]] = {
      most = most, position = ARGV[at], question = ARGV[at + 1], keep_ms = tonumber(ARGV[at + 2]),
      head = tonumber(ARGV[at + 3]), to_later = ARGV[at + 4], to_others = ARGV[at + 5], shared = ARGV[at + 6] == '1',
      attempt = tonumber(ARGV[at + 7]), lost = tonumber(ARGV[at + 8]),
    }
  end
  return asked
end

local function size_in(member)
  return tonumber(string.match(member, ';(%d+)$')) or 0
end

-- Keep an answer, in the place of the oldest ones if there is no room.
local function keep(q, result)
  local index, bytes_key = KEYS[CACHED], KEYS[CACHED] .. ':bytes'
  local key = index .. ':' .. q.question
  local entry = (redis.call('GET', KEYS[EDITION]) or '') .. '\n' .. q.head .. '\n' .. string.sub(result, 1, q.head) .. q.to_later
  local size, now = #entry + OVERHEAD, now_ms()
  if size > q.most * LARGEST then return end
  local bytes = tonumber(redis.call('GET', bytes_key) or '0')
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
  for i = 1, #old do
    redis.call('ZREM', index, old[i])
    bytes = bytes - size_in(old[i])
  end
  local before = redis.call('STRLEN', key)
  if before > 0 and redis.call('ZREM', index, q.question .. ';' .. (before + OVERHEAD)) == 1 then
    bytes = bytes - before - OVERHEAD
  end
  while bytes + size > q.most do
    local oldest = redis.call('ZPOPMIN', index)[1]
    if not oldest then
      bytes = 0
      break
    end
    redis.call('DEL', index .. ':' .. string.match(oldest, '^%x+'))
    bytes = bytes - size_in(oldest)
  end
  redis.call('SET', key, entry, 'PX', q.keep_ms)
  redis.call('ZADD', index, now + q.keep_ms, q.question .. ';' .. size)
  redis.call('SET', bytes_key, string.format('%.0f', bytes + size))
end

local function waiter_of(id, value)
  local message = string.sub(value, 2)
  local channel, after = string.match(message, '^","bunch_once":"%x+;%d+;([^"]*)"()', ID + #id)
  return {
    id = id, rank = tonumber(string.sub(value, 1, 1)), message = message, channel = channel or '',
    owner = after and string.match(message, '^,"bunch_owner":("[^"]*")', after) or '""',
    deadline = field(message, DEADLINE, 13), enqueued = field(message, ENQUEUED, 13), ttl = field(message, TTL, 9),
  }
end

-- Those who wait for what becomes of `id`; nothing if they do not wait for that one.
local function waiters_of(key, id)
  local first = string.match(redis.call('HGET', key, '*') or '', '^(.-);')
  if first ~= id then return nil end
  local rows, waiters = redis.call('HGETALL', key), {}
  for i = 1, #rows, 2 do
    if rows[i] ~= '*' and rows[i] ~= id then waiters[#waiters + 1] = waiter_of(rows[i], rows[i + 1]) end
  end
  return waiters
end

local function note(q, waiter, kind)
  others[#others + 1] = string.format(
    '%s;%s;%d;%.0f;%d;%s;%s', q.position, kind, waiter.rank, waiter.enqueued, waiter.ttl, waiter.id, waiter.owner)
end

local function tell(q, waiter, kind, result)
  local key = 'celery-task-meta-' .. waiter.id
  local announce = tracked(waiter.message)
  store(key, result, waiter.ttl, not announce and waiter.channel)
  if announce then redis.call('PUBLISH', key, result) end
  if waiter.channel ~= '' then reply(waiter.channel, waiter.id, result) end
  note(q, waiter, kind)
end

local function about(waiter, attempt)
  return string.format('"%s","bunch":{"admission_ms":0,"queue_ms":%.0f,"tier":"%s","attempt":%d,',
    waiter.id, math.max(0, claimed_ms - waiter.enqueued), tiers[waiter.rank + 1], attempt)
end

local EXPIRED = '{"status":"FAILURE","result":{"exc_type":"DeadlineExceeded","exc_message":["the time of the request had '
  .. 'passed before its answer was computed"],"exc_module":"tasks.errors"},"traceback":null,"children":[],"date_done":null,'
  .. '"task_id":'

-- Whether one who waits is no longer to be answered, because it was taken back or its time passed before `at`.
local any_cancelled
local function is_over(q, waiter, at)
  if any_cancelled == nil then any_cancelled = redis.call('EXISTS', KEYS[CANCELLED]) == 1 end
  local key, asked_for = 'celery-task-meta-' .. waiter.id, tracked(waiter.message)
  local gone = any_cancelled and redis.call('ZREM', KEYS[CANCELLED], waiter.id) == 1
  if gone and asked_for then redis.call('SET', key, state_of(waiter.id, 'REVOKED'), 'PX', waiter.ttl) end
  -- Celery's `revoke` writes no more than the state.
  if not gone and asked_for then gone = string.find(redis.call('GETRANGE', key, 0, 31), '"REVOKED"', 1, true) end
  if gone then
    note(q, waiter, 'c')
    return true
  end
  if waiter.deadline > at then return false end
  tell(q, waiter, 'x', EXPIRED .. about(waiter, 1) .. '"code":"DEADLINE_EXCEEDED"}}')
  return true
end

local function comes_before(waiter, other)
  if waiter.rank ~= other.rank then return waiter.rank < other.rank end
  if waiter.enqueued ~= other.enqueued then return waiter.enqueued < other.enqueued end
  return waiter.id < other.id
end

-- One who can still be answered takes the place of the one that was not: of the highest tier, the oldest. At the head of
-- its queue, since it has waited its turn, and with the attempts that its question has had.
local function pass_on(q, key, waiters, attempts)
  local now, heir = now_ms(), nil
  for _, waiter in ipairs(waiters) do
    if is_over(q, waiter, now) then
      redis.call('HDEL', key, waiter.id)
    elseif not heir or comes_before(waiter, heir) then
      heir = waiter
    end
  end
  if not heir then
    redis.call('DEL', key)
    return
  end
  local message = string.sub(heir.message, 1, LIMIT - 1) .. string.sub(heir.message, DEADLINE, DEADLINE + 12)
    .. string.sub(heir.message, LIMIT + 13, ATTEMPT - 1)
    .. string.format('%02d;%d', math.min(attempts, 99), math.min(q.lost, 9)) .. string.sub(heir.message, LOST + 1)
  redis.call('RPUSH', KEYS[QUEUES + heir.rank], message)
  redis.call('HSET', key, '*', string.format('%s;%d;%.0f', heir.id, heir.rank, heir.deadline), heir.id, heir.rank .. message)
  if redis.call('EXISTS', KEYS[BELL]) == 0 then redis.call('LPUSH', KEYS[BELL], 1) end
end

local function share(q, key, waiters, result)
  local head, spent, ended, left = string.sub(result, 1, q.head), 0, {}, {}
  for _, waiter in ipairs(waiters) do
    if spent > MOST_AT_ONCE then
      left[#left + 1] = waiter
    else
      if not is_over(q, waiter, claimed_ms) then
        tell(q, waiter, 's', head .. about(waiter, q.attempt) .. q.to_others)
        spent = spent + #result
      end
      ended[#ended + 1] = waiter.id
    end
  end
  if #left == 0 then
    redis.call('DEL', key)
  else
    for _, id in ipairs(ended) do redis.call('HDEL', key, id) end
    pass_on(q, key, left, 0)
  end
end

local function end_wait(q, id, result)
  local key = KEYS[WAITING] .. ':' .. q.question
  local waiters = waiters_of(key, id)
  if not waiters then return end
  redis.call('HDEL', key, id)
  if q.shared then share(q, key, waiters, result) else pass_on(q, key, waiters, q.attempt) end
end

local function answer_asked(q, id, result)
  -- Whatever is wrong with the keys of others (of another type, say) must not cost this one its own outcome.
  if q.keep_ms > 0 then pcall(keep, q, result) end
  pcall(end_wait, q, id, result)
end
