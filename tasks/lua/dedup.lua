-- Deduplication of requests; tasks/client/dedup.py describes it.
--
-- The first request with a question leaves a mark (batching/lua/dedup_marks.lua); those that join it wait in a hash:
-- task id → <rank><message>. batching/lua/coalescing.lua ends their wait, and caches the answer (the result of the one
-- that was computed) under a name that contains the model's epoch. Ranks in marks and hashes count from 0.
-- Further requests are computed on their own: one step of Redis must not read or answer an unlimited number.
local MOST_WAITERS, MOST_BYTES = 4096, 67108864
-- How long a mark outlives the last deadline: an executor may still be working on it.
local GRACE_MS = 60000
-- How many messages are searched that came in the same millisecond.
local SEARCHED = 512
-- As in batching/lua/reply.lua.
local HEARD_MS = 10000

-- Read the mark and the cached answer of each question from run `r` on, which begins at `first`, into `flush`; false
-- where there is none. One command for all, as a call costs more than the lookup. Likewise into `flush`: `names`, the
-- prefixes of the names; `lasts`, how long new marks are kept; and `lead`, which leaves one.
local function read_questions(flush, r, first)
  local prefixes = #KEYS - DedupKeys.width
  local names = {
    asked = KEYS[prefixes + DedupKeys.asked] .. ':', joined = KEYS[prefixes + DedupKeys.joined] .. ':',
    cached = KEYS[prefixes + DedupKeys.cached] .. ':',
  }
  local marks, answers, lasts, questions, editions = {}, {}, {}, {}, {}
  local function note(question, class)
    local line = string.find(question, '\n', 1, true)
    if line then question = string.sub(question, 1, line - 1) end
    if question == '' or marks[question] ~= nil then return end
    marks[question], answers[question] = false, false
    local model = class.model
    if class.kept and not model.kept_in then
      local edition = redis.pcall('GET', model.edition_key)
      model.kept_in = names.cached .. (type(edition) == 'string' and edition or '') .. ':'
    end
    questions[#questions + 1], editions[#editions + 1] = question, model.kept_in or names.cached
  end
  for number = r, #flush.runs do
    local run = flush.runs[number]
    local class, after = flush.classes[run[RunRow.number]], first + run[RunRow.words] * run[RunRow.messages]
    if class.once then
      for i = first, after - 1, 2 do note(ARGV[i], class) end
    end
    first = after
  end
  for from = 1, #questions, 256 do
    local wanted, last, n = {}, math.min(from + 255, #questions), 0
    for j = from, last do
      wanted[n + 1], wanted[n + 2] = names.asked .. questions[j], editions[j] .. questions[j]
      n = n + 2
    end
    local found = redis.call('MGET', unpack(wanted))
    for j = from, last do
      local place = 2 * (j - from) + 1
      marks[questions[j]], answers[questions[j]] = found[place], found[place + 1]
    end
  end
  flush.marks, flush.answers, flush.lasts, flush.names = marks, answers, lasts, names
  flush.lead = function(question, class, deadline, id)
    if class.marked ~= class.head then
      class.marked = class.head
      class.mark = (class.rank - 1) .. '0' .. string.sub(class.head, DEADLINE, DEADLINE + 12)
        .. string.sub(class.head, ENQUEUED, ENQUEUED + 12)
    end
    marks[question], lasts[question] = class.mark .. id, deadline + GRACE_MS
  end
end

-- Made only in a flush in which some requests are repeats, or may have been sent under a key: others must not pay for
-- these functions. `door` is the flush of judge.lua, with over_rate, refused, track and id_of.
-- Returns the function that judges such requests; `door.conclude` is to be called when all have been judged.
local function recognition(door)
  local marks, answers, lasts, names = door.marks, door.answers, door.lasts, door.names
  local replies, results, unheld = {}, {}, {}

  local function spend(class, due)
    if due then door.tats[class.state], door.spent[class.state] = due, true end
  end

  -- The id of the first request with an Idempotency-Key; nil if that one was never answered: it was refused and left no
  -- key, or it expired or was cancelled. Then the request runs.
  local function first_of(claim, fingerprint)
    local known = redis.call('GET', claim)
    local print, id = string.match(known or '', '^(%x+);(.+)$')
    if not id then return nil end
    local key = result_key(id)
    local status = string.match(redis.call('GETRANGE', key, 0, 31), '^{"status":%s*"(%u+)"')
    if not status or status == 'REVOKED' then return nil end
    if status == 'FAILURE' then
      local tail = redis.call('GETRANGE', key, -64, -1)
      if string.find(tail, '"code":"DEADLINE_EXCEEDED"', 1, true) then return nil end
    end
    return id, print == fingerprint
  end

  -- The parts of a cached answer before the task id and after the request's own times, with all times 0.
  local parted = {}
  local function parts_of(question)
    local parts = parted[question]
    if parts == nil then
      local result, about, version = answers[question], nil, nil
      local head = bytes_before_id(result)
      if head then
        about, version = string.match(
          result, '^"[^"]*","bunch":{.-("reason":"[^"]*","batch_size":%d+,"batch_id":"[^"]*","cached":)false(.*)$',
          head + 1)
      end
      parts = about and {
        before = string.sub(result, 1, head),
        after = '"batch_wait_ms":0,"transfer_ms":0,"compute_ms":0,' .. about .. 'true' .. version,
      }
      parted[question] = parts or false
    end
    return parts
  end

  -- Finish a request whose answer is cached, as a worker would.
  local function answer(class, parts, rest, request_key)
    local id, keep = door.id_of(door, rest), field(rest, TTL - door.prefix, 9)
    local key = result_key(id)
    local result = parts.before .. '"' .. id .. '","bunch":{"admission_ms":0,"queue_ms":0,"tier":"' .. class.once
      .. '","attempt":1,' .. parts.after
    if string.byte(rest, 1) == 49 then
      redis.call('SET', key, result, 'PX', keep)
      publish(key, result)
    else
      -- No other reader: once the caller has heard it, it need not be kept for long.
      local n = #results
      results[n + 1], results[n + 2], results[n + 3] = key, result, keep
    end
    if request_key ~= '' then redis.call('SET', request_key, id, 'PX', keep) end
    -- As in batching/lua/reply.lua.
    replies[#replies + 1] = #result <= 65536 and result or ('{"task_id":"' .. id .. '","status":"STORED"}')
  end

  local function is_ours(message)
    return string.sub(message, 1, #HEAD) == HEAD
  end

  -- The place in a queue, from its head, of the first message that came no earlier. Messages are in the order of
  -- arrival except a few at the head, which came back or took another's place.
  local function place_of(queue, enqueued)
    local low, high = 1, redis.call('LLEN', queue)
    while low < high do
      local middle = math.floor((low + high) / 2)
      local there = redis.call('LINDEX', queue, -middle)
      if is_ours(there) and field(there, ENQUEUED, 13) >= enqueued then high = middle else low = middle + 1 end
    end
    return low
  end

  local function is_of(message, id)
    return is_ours(message) and string.sub(message, ID, ID + #id) == id .. '"'
  end

  local function scan(queue, from, last, id, enqueued)
    for at = from, last, 16 do
      local there = redis.call('LRANGE', queue, -at - 15, -at)
      for j = #there, 1, -1 do
        if is_of(there[j], id) then return there[j] end
        if is_ours(there[j]) and field(there[j], ENQUEUED, 13) > enqueued then return nil end
      end
      if #there < 16 then return nil end
    end
  end

  -- Take a waiting request out of its queue, or out of this flush; returns its message, if it was there.
  local function withdraw(model, rank, id, enqueued)
    local fresh, found = model.fresh[rank] or {}, nil
    for j = #fresh, 1, -1 do
      if is_of(fresh[j], id) then
        found = table.remove(fresh, j)
        break
      end
    end
    local tier = model.tiers_at + TierKeys.width * rank
    if not found then
      local queue = KEYS[tier + TierKeys.queue]
      local from = place_of(queue, enqueued)
      found = scan(queue, from, from + SEARCHED, id, enqueued) or scan(queue, 1, 16, id, math.huge)
      if not found or redis.call('LREM', queue, -1, found) == 0 then return nil end
    end
    -- Without thresholds, a queue that this flush does not use was not counted.
    if model.depths[rank] then model.depths[rank], model.waiting = model.depths[rank] - 1, model.waiting - 1 end
    local key = string.sub(found, KEY, KEY + 7)
    if key ~= NO_KEY then unheld[#unheld + 1] = {KEYS[tier + TierKeys.held], key} end
    return found
  end

  -- Let one more request wait for the answer, until its own deadline.
  local function enter(question, id, rank, message, deadline)
    local waiting, last = names.joined .. question, deadline + GRACE_MS
    redis.call('HSET', waiting, id, (rank - 1) .. message)
    local longer = redis.call('PTTL', waiting) < last
    if longer then redis.call('PEXPIRE', waiting, last) end
    local mark = marks[question]
    if longer or not is_joined(mark) then
      lasts[question] = math.max(last, lasts[question] or redis.call('PTTL', names.asked .. question))
      marks[question] = string.sub(mark, 1, 1) .. '1' .. string.sub(mark, 3)
    end
  end

  -- What to do with a repeat: 'lead' (become the first, for all that follow), 'join' those that wait, or 'alone'
  -- (compute it on its own).
  local function part_in(question, class, deadline, queue_limit, id, message)
    local mark = marks[question]
    -- The first one is lost, or too late to wait for; if it still ends, only its own caller gets the result.
    if field(mark, MARK_DEADLINE, 13) <= door.now then return 'lead' end
    local there = redis.call('HLEN', names.joined .. question)
    if there >= MOST_WAITERS or there * #message > MOST_BYTES then return 'alone' end
    local rank = string.byte(mark) - 47
    if class.rank < rank and not door.refused(class, deadline, queue_limit) then
      local first = string.sub(mark, MARK_ID)
      local moved = withdraw(class.model, rank, first, field(mark, MARK_ENQUEUED, 13))
      if moved then
        -- The former first one now waits for this one.
        enter(question, first, rank, moved, field(mark, MARK_DEADLINE, 13) - door.now)
        return 'lead'
      end
    end
    enter(question, id, class.rank, message, deadline)
    return 'join'
  end

  local function part_of(question, class, deadline, queue_limit, id, message)
    if not marks[question] then return 'lead' end
    -- An error in the keys of those that wait must not cost anybody an answer.
    local fine, part = pcall(part_in, question, class, deadline, queue_limit, id, message)
    return fine and part or 'alone'
  end

  -- Judge a possible repeat: returns why it does not go into the queue, and when to retry; like `refusal`.
  local function known_before(class, deadline, queue_limit, i, head)
    local question, request_key, claim, fingerprint = ARGV[i], '', '', ''
    if string.find(question, '\n', 1, true) then
      question, request_key, claim, fingerprint = string.match(question, '^(.-)\n(.-)\n(.-)\n(.*)$')
    end
    local rest = ARGV[i + 1]
    local id = door.id_of(door, rest)
    ARGV[i] = request_key
    local why, due = door.over_rate(class)
    if why then return why, due end
    if claim ~= '' then
      local known, same = first_of(claim, fingerprint)
      if known then spend(class, due) end
      if known and not same then return Status.CONFLICT, 0 end
      if known then return Status.REPEATED, known end
    end
    local parts, part
    if question ~= '' and class.model.memory <= door.most_memory then
      parts = answers[question] and parts_of(question)
      part = not parts and part_of(question, class, deadline, queue_limit, id, head .. rest)
    end
    if parts then
      answer(class, parts, rest, request_key)
      why = Status.ANSWERED
    elseif part == 'join' then
      if string.byte(rest, 1) == 49 then door.track(door, rest, deadline, request_key) end
      why = Status.JOINED
    else
      local no, later = door.refused(class, deadline, queue_limit)
      if no then return no, later end
      due = later or due
    end
    if why then spend(class, due) end
    if part == 'lead' then
      local joined = marks[question] and is_joined(marks[question])
      door.lead(question, class, deadline, id)
      if joined then
        lasts[question] = math.max(lasts[question], redis.call('PTTL', names.joined .. question))
        marks[question] = string.sub(marks[question], 1, 1) .. '1' .. string.sub(marks[question], 3)
      end
    end
    if claim ~= '' then
      redis.call('SET', claim, fingerprint .. ';' .. id, 'PX', deadline + field(rest, TTL - door.prefix, 9))
    end
    return why, due
  end

  function door.conclude()
    local heard = #replies > 0 and publish(door.channel, '[' .. table.concat(replies, ',') .. ']') > 0
    for j = 1, #results, 3 do
      local keep = results[j + 2]
      redis.call('SET', results[j], results[j + 1], 'PX', heard and math.min(keep, HEARD_MS) or keep)
    end
    for _, each in ipairs(unheld) do
      if redis.call('HINCRBY', each[1], each[2], -1) <= 0 then redis.call('HDEL', each[1], each[2]) end
    end
  end

  return known_before
end
