-- Outcomes of questions that others may ask, or have asked and wait for (batching/coalescing.py, tasks/lua/dedup.lua).
-- What an entry costs beside its bytes: its key, its place among the kept.
local OVERHEAD = 300
-- No answer may take more than this part of all room.
local LARGEST = 1 / 64
-- In bytes of results: when it is used up, one of those who still wait asks again, for the rest.
local MOST_AT_ONCE = 67108864
-- How many rows of answers that have gone by themselves one step forgets.
local MOST_FORGOTTEN = 64

-- Make room for so many bytes more of kept answers: the oldest go. A row is of one batch: <time of its end>;<bytes
-- before it>;<bytes with it>;<edition>;<questions>, where bytes are of all answers that were ever kept. An answer that
-- was given anew has two rows, and counts twice until the first of them goes, the answer with it. Returns the bytes
-- before.
local function make_room(size, most, now)
  local newest = redis.call('LINDEX', KEYS.kept, -1)
  local total, forgotten = newest and tonumber(string.match(newest, '^%d+;%d+;(%d+)')) or 0, 0
  while true do
    local row = redis.call('LINDEX', KEYS.kept, 0)
    if not row then return 0 end
    local ends, before, edition, questions = string.match(row, '^(%d+);(%d+);%d+;([^;]*);(.*)$')
    local gone = tonumber(ends) <= now
    if total - before + size <= most and (not gone or forgotten == MOST_FORGOTTEN) then return total end
    redis.call('LPOP', KEYS.kept)
    forgotten = forgotten + 1
    if not gone then
      local names = {}
      for question in string.gmatch(questions, '[^,]+') do
        names[#names + 1] = KEYS.cached .. ':' .. edition .. ':' .. question
      end
      redis.call('DEL', unpack(names))
    end
  end
end

local function keep_row(row, edition, most, now)
  -- Room first: what makes it may have answered one of these before.
  local total = make_room(row.size, most, now)
  local prefix = KEYS.cached .. ':' .. edition .. ':'
  local keep_ms, ends, last = nil, nil, 0
  for j = 1, #row do
    local q = row[j]
    if q.keep_ms ~= keep_ms then
      keep_ms, ends = q.keep_ms, string.format('%.0f', now + q.keep_ms)
      last = math.max(last, ends)
    end
    redis.call('SET', prefix .. q.question, q.result, 'PXAT', ends)
    row[j] = q.question
  end
  redis.call('RPUSH', KEYS.kept,
    string.format('%.0f;%.0f;%.0f;%s;%s', last, total, total + row.size, edition, table.concat(row, ',')))
end

local function keep_answers(outcomes, edition, most)
  local now, largest, row = now_ms(), most * LARGEST, {size = 0}
  for j = 1, #outcomes do
    local q = outcomes[j]
    local size = #q.result + OVERHEAD
    if q.keep_ms ~= '0' and size <= largest then
      row[#row + 1] = q
      row.size = row.size + size
      -- The oldest go by rows: none shall be much of all.
      if row.size > largest or #row == 1000 then
        keep_row(row, edition, most, now)
        row = {size = 0}
      end
    end
  end
  if #row > 0 then keep_row(row, edition, most, now) end
end

-- Before the rows of those who were settled beside the batch goes how many were stored. A row: <position of the one
-- computed>;<s, x or c>;<rank>;<enqueued>;<result TTL>;<id>;<owner>
local others = {0}

-- What ends the wait of those who have joined a question. Built only where some have: nobody else shall pay for these
-- functions. `from` is where the common arguments begin.
local function ending(from)
  local claimed_ms, tiers = tonumber(ARGV[from - 1 + AnswerArgs.claimed_ms]), {}
  for tier in string.gmatch(ARGV[from - 1 + AnswerArgs.tiers], '[^;]+') do tiers[#tiers + 1] = tier end

  local function waiter_of(id, value)
    local message = string.sub(value, 2)
    local after = string.match(message, '^","bunch_once":"[^"]*"()', ID + #id)
    return {
      id = id, rank = tonumber(string.sub(value, 1, 1)), message = message,
      -- Inside any other field its quotes would be escaped.
      channel = string.match(message, '"reply_to":"([^"]*)"') or '',
      owner = after and string.match(message, '^,"bunch_owner":("[^"]*")', after) or '""',
      deadline = field(message, DEADLINE, 13), enqueued = field(message, ENQUEUED, 13), ttl = field(message, TTL, 9),
    }
  end

  local function waiters_of(q)
    local rows, waiters = redis.call('HGETALL', q.waiting), {}
    for i = 1, #rows, 2 do waiters[#waiters + 1] = waiter_of(rows[i], rows[i + 1]) end
    return waiters
  end

  local function note(q, waiter, kind)
    others[#others + 1] = string.format(
      '%s;%s;%d;%.0f;%d;%s;%s', q.position, kind, waiter.rank, waiter.enqueued, waiter.ttl, waiter.id, waiter.owner)
  end

  local function tell(q, waiter, kind, result)
    local key = result_key(waiter.id)
    local announce = tracked(waiter.message)
    store(key, result, waiter.ttl, not announce and waiter.channel)
    if announce then publish(key, result) end
    if waiter.channel ~= '' then reply(waiter.channel, waiter.id, result) end
    note(q, waiter, kind)
  end

  local function about(waiter, attempt)
    return string.format('"%s","bunch":{"admission_ms":0,"queue_ms":%.0f,"tier":"%s","attempt":%d,',
      waiter.id, math.max(0, claimed_ms - waiter.enqueued), tiers[waiter.rank + 1], attempt)
  end

  local EXPIRED = '{"status":"FAILURE","owned":true,"result":{"exc_type":"DeadlineExceeded",'
    .. '"exc_message":["the time of the request had passed before its answer was computed"],'
    .. '"exc_module":"tasks.errors"},"traceback":null,"children":[],"date_done":null,"task_id":'

  -- Whether one who waits is no longer to be answered, because it was taken back or its time passed before `at`.
  local any_cancelled
  local function is_over(q, waiter, at)
    if any_cancelled == nil then any_cancelled = redis.call('EXISTS', KEYS.cancelled) == 1 end
    local key, asked_for = result_key(waiter.id), tracked(waiter.message)
    local gone = any_cancelled and redis.call('ZREM', KEYS.cancelled, waiter.id) == 1
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

  local function forget(q, ids)
    for i = 1, #ids, 1000 do redis.call('HDEL', q.waiting, unpack(ids, i, math.min(i + 999, #ids))) end
  end

  -- One who can still be answered takes the place of the one that was not: of the highest tier, the oldest. At the head
  -- of its queue, since it has waited its turn, and with the attempts that its question has had.
  local function pass_on(q, waiters, attempts, lost)
    local now, heir, over = now_ms(), nil, {}
    for _, waiter in ipairs(waiters) do
      if is_over(q, waiter, now) then
        over[#over + 1] = waiter.id
      elseif not heir or comes_before(waiter, heir) then
        heir = waiter
      end
    end
    forget(q, over)
    if not heir then
      redis.call('DEL', q.mark)
      return
    end
    local message = string.sub(heir.message, 1, LIMIT - 1) .. string.sub(heir.message, DEADLINE, DEADLINE + 12)
      .. string.sub(heir.message, LIMIT + 13, ATTEMPT - 1)
      .. string.format('%02d;%d', math.min(attempts, 99), math.min(lost, 9)) .. string.sub(heir.message, LOST + 1)
    redis.call('RPUSH', KEYS[KEYS.width + heir.rank + 1], message)
    -- The hash lives as long as the last of those in it may wait, and goes with the last.
    local keep = redis.call('PTTL', q.waiting)
    redis.call('HDEL', q.waiting, heir.id)
    local joined = redis.call('EXISTS', q.waiting) == 1
    local mark = string.format(
      '%d%d%013.0f%013.0f%s', heir.rank, joined and 1 or 0, heir.deadline, heir.enqueued, heir.id)
    redis.call('SET', q.mark, mark, 'PX', keep)
    if redis.call('EXISTS', KEYS.bell) == 0 then redis.call('LPUSH', KEYS.bell, 1) end
  end

  -- Others get the bytes of this one's result, with an id and times of their own.
  local function share(q, waiters, attempt)
    local size = bytes_before_id(q.result)
    local head = string.sub(q.result, 1, size)
    local at = string.match(
      q.result, '^"[^"]*","bunch":{"admission_ms":%d+,"queue_ms":%d+,"tier":"%a+","attempt":%d+,()', size + 1)
    local tail = string.sub(q.result, at, -3) .. ',"collapsed":true}}'
    local spent, ended, left = 0, {}, {}
    for _, waiter in ipairs(waiters) do
      if spent > MOST_AT_ONCE then
        left[#left + 1] = waiter
      else
        if not is_over(q, waiter, claimed_ms) then
          tell(q, waiter, 's', head .. about(waiter, attempt) .. tail)
          spent = spent + #q.result
        end
        ended[#ended + 1] = waiter.id
      end
    end
    if #left == 0 then
      redis.call('DEL', q.waiting, q.mark)
    else
      forget(q, ended)
      pass_on(q, left, 0, 0)
    end
  end

  return function(q)
    local shared, attempt, lost = string.match(q.about, '(%d);(%d+);(%d+)$')
    q.waiting = KEYS.joined .. ':' .. q.question
    local waiters = waiters_of(q)
    if shared == '1' then share(q, waiters, attempt) else pass_on(q, waiters, tonumber(attempt), tonumber(lost)) end
  end
end

-- All outcomes that are something to others. `noted` is where in ARGV each begins, and its position; the last of its
-- words is <question>;<for how long to keep it>;<'1' if others get it, '0' if one of them takes its
-- place>;<attempts>;<lost>
local function settle_questions(noted, from)
  local outcomes, edition, end_wait = {}, '', nil
  for i = 1, #noted, 1000 do
    local names, last, over = {}, math.min(i + 999, #noted), {}
    for j = i, last do
      local at, position = unpack(noted[j])
      local question, keep_ms = string.match(ARGV[at - 1 + OutcomeWords.asked], '^([^;]+);(%d+)')
      outcomes[j] = {
        position = position, id = ARGV[at - 1 + OutcomeWords.task_id], result = ARGV[at - 1 + OutcomeWords.result],
        about = ARGV[at - 1 + OutcomeWords.asked], question = question, keep_ms = keep_ms,
        mark = false, waiting = false,
      }
      names[#names + 1] = KEYS.asked .. ':' .. question
    end
    local count = #names
    names[count + 1] = KEYS.edition
    local marks = redis.call('MGET', unpack(names))
    edition = marks[count + 1] or ''
    for j = i, last do
      local q, mark = outcomes[j], marks[j - i + 1]
      -- One that is late answers itself alone.
      if mark and string.sub(mark, MARK_ID) == q.id then
        q.mark = names[j - i + 1]
        if is_joined(mark) then end_wait = end_wait or ending(from) end
        if not (is_joined(mark) and pcall(end_wait, q)) then over[#over + 1] = q.mark end
      end
    end
    if #over > 0 then redis.call('DEL', unpack(over)) end
  end
  -- Whatever is wrong with the keys of others (of another type, say) must not cost these their own outcome.
  pcall(keep_answers, outcomes, edition, tonumber(ARGV[from - 1 + AnswerArgs.max_bytes]))
end
