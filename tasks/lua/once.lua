-- Whether a request has been asked before: tasks/once.py says what for.
--
-- Whoever asks a question first leaves a mark (batching/lua/mark.lua), those who join it wait in a hash: task id →
-- <rank><message>. batching/lua/asked.lua ends their wait, and keeps the answer: <edition>;<bytes up to the task
-- id>\n<result of the one that was computed>. Ranks there count from 0.
local CONFLICT, REPEATED, ANSWERED, JOINED = '7', '8', 'a', 'j'
-- More stand for themselves: one step of Redis' must not read or answer any number.
local MOST_WAITERS, MOST_BYTES = 4096, 67108864
-- How long a mark outlives the last deadline: an executor may be at it still.
local GRACE_MS = 60000
-- How many are looked at that came in the millisecond of the one that is looked for.
local SEARCHED = 512
-- As in batching/lua/reply.lua.
local HEARD_MS = 10000

-- Built only in a flush in which some may have been asked before: nobody else shall pay for these functions. `door` is
-- what submit.lua knows: refusal, over_rate, track, id_of, tats, spent, unheld, now, most_memory, prefix, classes, first,
-- channel, and the beginnings of the names: asked, joined, cached.
-- Returns the judge of such requests, and what is to be called when all have been judged.
local function recognition(door)
  local replies, results = {}, {}
  -- Of each question of this flush what was there, and as it is now; for how long to leave marks that are new.
  local answers, marks, keep_marks = {}, {}, {}

  -- One step for all of them: a call costs more than what it finds.
  local function read_known()
    local questions = {}
    for i = door.first, #ARGV, 5 do
      if door.classes[tonumber(ARGV[i])].once then
        local question = ARGV[i + 3]
        local line = string.find(question, '\n', 1, true)
        if line then question = string.sub(question, 1, line - 1) end
        if question ~= '' and marks[question] == nil then
          marks[question] = false
          questions[#questions + 1] = question
        end
      end
    end
    for from = 1, #questions, 256 do
      local names, last = {}, math.min(from + 255, #questions)
      for j = from, last do
        names[#names + 1], names[#names + 2] = door.asked .. questions[j], door.cached .. questions[j]
      end
      local found = redis.call('MGET', unpack(names))
      for j = from, last do
        local at = 2 * (j - from) + 1
        marks[questions[j]], answers[questions[j]] = found[at], found[at + 1]
      end
    end
  end
  read_known()

  local function spend(class, due)
    if due then door.tats[class.state], door.spent[class.state] = due, true end
  end

  -- Of the request that an Idempotency-Key has been used for: its id, or nothing if that came to nothing. Refused at the
  -- door it left no key; expired or taken back it was never answered, and whoever asks again means it.
  local function first_of(claim, fingerprint)
    local known = redis.call('GET', claim)
    local print, id = string.match(known or '', '^(%x+);(.+)$')
    if not id then return nil end
    local key = 'celery-task-meta-' .. id
    local status = string.match(redis.call('GETRANGE', key, 0, 31), '^{"status":%s*"(%u+)"')
    if not status or status == 'REVOKED' then return nil end
    if status == 'FAILURE' and string.find(redis.call('GETRANGE', key, -64, -1), '"code":"DEADLINE_EXCEEDED"', 1, true) then
      return nil
    end
    return id, print == fingerprint
  end

  local function edition_of(model)
    if not model.edition then
      local edition = redis.pcall('GET', model.edition_key)
      model.edition = type(edition) == 'string' and edition or ''
    end
    return model.edition
  end

  -- A kept answer of this edition of the model: what stands before the task id, and what follows a request's own times,
  -- with none of them; else nothing.
  local function kept_answer(entry, edition)
    local of, size, at = string.match(entry, '^([^;]*);(%d+)\n()')
    if of ~= edition then return nil end
    local about, version = string.match(
      entry, '^"[^"]*","bunch":{.-("reason":"[^"]*","batch_size":%d+,"batch_id":"[^"]*","cached":)false(.*)$', at + size)
    if not about then return nil end
    return string.sub(entry, at, at + size - 1), '"batch_wait_ms":0,"transfer_ms":0,"compute_ms":0,' .. about .. 'true' .. version
  end

  -- What has its answer already is finished as a worker would do it.
  local function answer(class, before, after, rest, request_key)
    local id, keep = door.id_of(rest), field(rest, TTL - door.prefix, 9)
    local key = 'celery-task-meta-' .. id
    local result = before .. '"' .. id .. '","bunch":{"admission_ms":0,"queue_ms":0,"tier":"' .. class.once .. '","attempt":1,' .. after
    if string.byte(rest, 1) == 49 then
      redis.call('SET', key, result, 'PX', keep)
      redis.call('PUBLISH', key, result)
    else
      -- Nobody else waits for it: if it is heard, it need not be kept for long.
      local n = #results
      results[n + 1], results[n + 2], results[n + 3] = key, result, keep
    end
    if request_key ~= '' then redis.call('SET', request_key, id, 'PX', keep) end
    -- As in batching/lua/reply.lua.
    replies[#replies + 1] = #result <= 65536 and result or ('{"task_id":"' .. id .. '","status":"STORED"}')
  end

  -- Where in a queue the first stands that came no earlier, counted from its head. They stand in the order in which they
  -- came but for a few at the head, that came back or took another's place.
  local function place_of(queue, enqueued)
    local low, high = 1, redis.call('LLEN', queue)
    while low < high do
      local middle = math.floor((low + high) / 2)
      local there = redis.call('LINDEX', queue, -middle)
      if string.sub(there, 1, #HEAD) ~= HEAD or field(there, ENQUEUED, 13) < enqueued then
        low = middle + 1
      else
        high = middle
      end
    end
    return low
  end

  local function is_of(message, id)
    return string.sub(message, 1, #HEAD) == HEAD and string.sub(message, ID, ID + #id) == id .. '"'
  end

  local function scan(queue, from, last, id, enqueued)
    for at = from, last, 16 do
      local there = redis.call('LRANGE', queue, -at - 15, -at)
      for j = #there, 1, -1 do
        if is_of(there[j], id) then return there[j] end
        if string.sub(there[j], 1, #HEAD) == HEAD and field(there[j], ENQUEUED, 13) > enqueued then return nil end
      end
      if #there < 16 then return nil end
    end
  end

  -- Take a waiting request out of its queue, be it of this very flush; its message, if it was there.
  local function withdraw(model, rank, id, enqueued)
    local fresh, found = model.fresh[rank] or {}, nil
    for j = #fresh, 1, -1 do
      if is_of(fresh[j], id) then
        found = table.remove(fresh, j)
        break
      end
    end
    local at = model.queues + 2 * rank
    if not found then
      local from = place_of(KEYS[at], enqueued)
      found = scan(KEYS[at], from, from + SEARCHED, id, enqueued) or scan(KEYS[at], 1, 16, id, math.huge)
      if not found or redis.call('LREM', KEYS[at], -1, found) == 0 then return nil end
    end
    -- With no thresholds a queue in which nothing is put has not been counted.
    if model.depths[rank] then model.depths[rank], model.waiting = model.depths[rank] - 1, model.waiting - 1 end
    local key = string.sub(found, KEY, KEY + 7)
    if key ~= NO_KEY then door.unheld[#door.unheld + 1] = {KEYS[at + 1], key} end
    return found
  end

  -- One more waits for the answer, until its own deadline.
  local function enter(question, id, rank, message, deadline)
    local waiting, last = door.joined .. question, deadline + GRACE_MS
    redis.call('HSET', waiting, id, (rank - 1) .. message)
    local longer = redis.call('PTTL', waiting) < last
    if longer then redis.call('PEXPIRE', waiting, last) end
    local mark = marks[question]
    if longer or not is_joined(mark) then
      keep_marks[question] = math.max(last, keep_marks[question] or redis.call('PTTL', door.asked .. question))
      marks[question] = string.sub(mark, 1, 1) .. '1' .. string.sub(mark, 3)
    end
  end

  -- What becomes of one more that asks what is asked already: 'lead', for all who come after it; 'join' those who wait;
  -- 'alone'.
  local function part_in(question, class, deadline, queue_limit, id, message, refused)
    local mark = marks[question]
    local rank, due, enqueued = string.byte(mark) - 47, field(mark, MARK_DEADLINE, 13), field(mark, MARK_ENQUEUED, 13)
    -- Lost, or so late that nobody should wait for it; if it comes to an end, then to its own.
    if due <= door.now then return 'lead' end
    local there = redis.call('HLEN', door.joined .. question)
    if there >= MOST_WAITERS or there * #message > MOST_BYTES then return 'alone' end
    if class.rank < rank and not refused(class, deadline, queue_limit) then
      local first = string.sub(mark, MARK_ID)
      local moved = withdraw(class.model, rank, first, enqueued)
      if moved then
        -- It goes on waiting, for this one.
        enter(question, first, rank, moved, due - door.now)
        return 'lead'
      end
    end
    enter(question, id, class.rank, message, deadline)
    return 'join'
  end

  local function take_lead(question, class, id, deadline)
    if class.marked ~= class.head then
      class.marked = class.head
      class.times = string.sub(class.head, DEADLINE, DEADLINE + 12) .. string.sub(class.head, ENQUEUED, ENQUEUED + 12)
    end
    local joined = marks[question] and is_joined(marks[question])
    marks[question] = (class.rank - 1) .. (joined and '1' or '0') .. class.times .. id
    keep_marks[question] = math.max(deadline + GRACE_MS, joined and redis.call('PTTL', door.joined .. question) or 0)
  end

  local function refused(class, deadline, queue_limit)
    if class.model.waiting > class.calm then return door.refusal(class, deadline, queue_limit) end
  end

  -- Why one more of a class whose requests may have been asked before does not go into the queue; as `refusal`.
  local function known_before(class, deadline, queue_limit, i, head)
    local question, request_key, claim, fingerprint = ARGV[i + 3], '', '', ''
    if string.find(question, '\n', 1, true) then
      question, request_key, claim, fingerprint = string.match(question, '^(.-)\n(.-)\n(.-)\n(.*)$')
    end
    local rest, why, due = ARGV[i + 4], nil, nil
    local id = door.id_of(rest)
    ARGV[i + 3] = request_key
    if class.quota > 0 then
      why, due = door.over_rate(class)
      if why then return why, due end
    end
    if claim ~= '' then
      local known, same = first_of(claim, fingerprint)
      if known then spend(class, due) end
      if known and not same then return CONFLICT, 0 end
      if known then return REPEATED, known end
    end
    local before, after, part
    if question ~= '' and class.model.memory <= door.most_memory then
      local entry = class.kept and answers[question]
      if entry then before, after = kept_answer(entry, edition_of(class.model)) end
      if not before and marks[question] then
        -- What is wrong with the keys of those who wait must not cost anybody an answer.
        local fine, found = pcall(part_in, question, class, deadline, queue_limit, id, head .. rest, refused)
        part = fine and found or 'alone'
      elseif not before then
        part = 'lead'
      end
    end
    if before then
      answer(class, before, after, rest, request_key)
      why = ANSWERED
    elseif part == 'join' then
      if string.byte(rest, 1) == 49 then door.track(rest, deadline, request_key) end
      why = JOINED
    else
      local no, later = refused(class, deadline, queue_limit)
      if no then return no, later end
      due = later or due
    end
    if why then spend(class, due) end
    if part == 'lead' then take_lead(question, class, id, deadline) end
    if claim ~= '' then
      redis.call('SET', claim, fingerprint .. ';' .. id, 'PX', deadline + field(rest, TTL - door.prefix, 9))
    end
    return why, due
  end

  local function conclude()
    -- Not before all are queued that they speak of.
    for question, keep in pairs(keep_marks) do redis.call('SET', door.asked .. question, marks[question], 'PX', keep) end
    local heard = #replies > 0 and redis.call('PUBLISH', door.channel, '[' .. table.concat(replies, ',') .. ']') > 0
    for j = 1, #results, 3 do
      redis.call('SET', results[j], results[j + 1], 'PX', heard and math.min(results[j + 2], HEARD_MS) or results[j + 2])
    end
    for _, each in ipairs(door.unheld) do
      if redis.call('HINCRBY', each[1], each[2], -1) <= 0 then redis.call('HDEL', each[1], each[2]) end
    end
  end

  return known_before, conclude
end
