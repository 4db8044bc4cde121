-- Outcomes of questions that others may ask, or have asked and wait for (batching/asked.py, tasks/lua/once.lua).
local CACHED, KEPT, EDITION, ASKED, JOINED, CANCELLED, BELL, QUEUES = 4, 5, 6, 7, 8, 9, 10, 10
-- What an entry costs beside its bytes: its key, its place among the kept.
local OVERHEAD = 300
-- No answer may take more than this part of all room.
local LARGEST = 1 / 64
-- In bytes of results: when it is used up, one of those who still wait asks again, for the rest.
local MOST_AT_ONCE = 67108864
-- How many rows of answers that are gone by themselves one step forgets.
local MOST_FORGOTTEN = 64

-- Built only where a batch has such outcomes. `from` is where their common arguments begin.
-- Returns what notes one of them, what settles all, and who was settled beside the batch, as rows: <position of the one
-- computed>;<s, x or c>;<rank>;<enqueued>;<result TTL>;<id>;<owner>
local function answering(from)
  local most, claimed_ms, tiers = tonumber(ARGV[from]), tonumber(ARGV[from + 1]), {}
  -- Before the rows goes how many were stored.
  local outcomes, others = {}, {0}

  -- <'1' or '0': announced><question>;<for how long to keep it>;<bytes up to the task id>;<'1' if others get it, '0' if
  -- one of them takes its place>;<attempts>;<lost>
  local function note_outcome(position, about, id, result)
    local question, keep_ms, head = string.match(about, '^.([^;]+);(%d+);(%d+)')
    outcomes[#outcomes + 1] =
      {position = position, about = about, question = question, keep_ms = keep_ms, head = head, id = id, result = result}
  end

  -- The oldest make room. Rows stand in the order in which they end: <time of its end>;<bytes>;<questions>. A question that
  -- was answered anew has two rows, and counts twice until the first of them goes, the answer with it.
  local function make_room(size, now)
    local rows, room = KEYS[KEPT], KEYS[KEPT] .. ':bytes'
    local bytes, forgotten = tonumber(redis.call('GET', room) or '0'), 0
    while true do
      local row = redis.call('LINDEX', rows, 0)
      if not row then
        bytes = 0
        break
      end
      local ends, took, questions = string.match(row, '^(%d+);(%d+);(.*)$')
      local gone = tonumber(ends) <= now
      if bytes + size <= most and (not gone or forgotten == MOST_FORGOTTEN) then break end
      redis.call('LPOP', rows)
      bytes, forgotten = bytes - took, forgotten + 1
      if not gone then
        local names = {}
        for question in string.gmatch(questions, '[^,]+') do names[#names + 1] = KEYS[CACHED] .. ':' .. question end
        redis.call('DEL', unpack(names))
      end
    end
    redis.call('SET', room, string.format('%.0f', bytes + size))
  end

  -- Room first: what makes it may have answered one of these before.
  local function keep_row(row)
    if #row.questions == 0 then return end
    local now = now_ms()
    make_room(row.size, now)
    for j = 1, #row.questions do
      redis.call('SET', KEYS[CACHED] .. ':' .. row.questions[j], row.entries[j], 'PX', row.keep_ms[j])
    end
    local ends = now + math.max(unpack(row.keep_ms))
    redis.call('RPUSH', KEYS[KEPT], string.format('%.0f;%.0f;%s', ends, row.size, table.concat(row.questions, ',')))
  end

  local function new_row()
    return {questions = {}, entries = {}, keep_ms = {}, size = 0}
  end

  local function keep_answers()
    local edition, largest, row = redis.call('GET', KEYS[EDITION]) or '', most * LARGEST, new_row()
    for j = 1, #outcomes do
      local q = outcomes[j]
      if q.keep_ms ~= '0' then
        local entry = edition .. ';' .. q.head .. '\n' .. q.result
        if #entry + OVERHEAD <= largest then
          local n = #row.questions + 1
          row.questions[n], row.entries[n], row.keep_ms[n] = q.question, entry, q.keep_ms
          row.size = row.size + #entry + OVERHEAD
          -- The oldest go by rows: none shall be much of all.
          if row.size > largest or n == 1000 then
            keep_row(row)
            row = new_row()
          end
        end
      end
    end
    keep_row(row)
  end

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

  local function forget(q, ids)
    for i = 1, #ids, 1000 do redis.call('HDEL', q.waiting, unpack(ids, i, math.min(i + 999, #ids))) end
  end

  -- One who can still be answered takes the place of the one that was not: of the highest tier, the oldest. At the head of
  -- its queue, since it has waited its turn, and with the attempts that its question has had.
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
    redis.call('RPUSH', KEYS[QUEUES + heir.rank + 1], message)
    -- The hash lives as long as the last of those in it may wait, and goes with the last.
    local keep = redis.call('PTTL', q.waiting)
    redis.call('HDEL', q.waiting, heir.id)
    local joined = redis.call('EXISTS', q.waiting) == 1
    redis.call('SET', q.mark, mark_of(heir.rank, joined, heir.deadline, heir.enqueued, heir.id), 'PX', keep)
    if redis.call('EXISTS', KEYS[BELL]) == 0 then redis.call('LPUSH', KEYS[BELL], 1) end
  end

  -- Others get the bytes of this one's result, with an id and times of their own.
  local function share(q, waiters, attempt)
    local head = string.sub(q.result, 1, q.head)
    local at = string.match(
      q.result, '^"[^"]*","bunch":{"admission_ms":%d+,"queue_ms":%d+,"tier":"%a+","attempt":%d+,()', q.head + 1)
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

  local function end_wait(q)
    if #tiers == 0 then
      for tier in string.gmatch(ARGV[from + 2], '[^;]+') do tiers[#tiers + 1] = tier end
    end
    local shared, attempt, lost = string.match(q.about, '(%d);(%d+);(%d+)$')
    q.waiting = KEYS[JOINED] .. ':' .. q.question
    local waiters = waiters_of(q)
    if shared == '1' then share(q, waiters, attempt) else pass_on(q, waiters, tonumber(attempt), tonumber(lost)) end
  end

  local function end_questions()
    for i = 1, #outcomes, 1000 do
      local names, last, over = {}, math.min(i + 999, #outcomes), {}
      for j = i, last do names[#names + 1] = KEYS[ASKED] .. ':' .. outcomes[j].question end
      local marks = redis.call('MGET', unpack(names))
      for j = i, last do
        local q, mark = outcomes[j], marks[j - i + 1]
        q.mark = names[j - i + 1]
        -- One that is late answers itself alone.
        if mark and string.sub(mark, MARK_ID) == q.id and not (is_joined(mark) and pcall(end_wait, q)) then
          over[#over + 1] = q.mark
        end
      end
      if #over > 0 then redis.call('DEL', unpack(over)) end
    end
  end

  local function settle_questions()
    end_questions()
    -- Whatever is wrong with the keys of others (of another type, say) must not cost these their own outcome.
    pcall(keep_answers)
  end

  return note_outcome, settle_questions, others
end
