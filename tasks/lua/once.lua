-- Whether a request has been asked before: tasks/once.py says what for.
--
-- Those who wait for the answer to one question are in a hash: task id → <rank><message>, and '*' → <id of the one that is
-- queued or computed>;<its rank>;<its deadline>. batching/lua/asked.lua ends their wait. Ranks there count from 0.
local CONFLICT, REPEATED, ANSWERED, JOINED = '7', '8', 'a', 'j'
-- More stand for themselves: one step of Redis' must not read or answer any number.
local MOST_WAITERS, MOST_BYTES = 4096, 67108864
-- How long a question outlives its last deadline: an executor may be at it still.
local GRACE_MS = 60000
-- How far into a long queue one looks for a request, from either end.
local SEARCHED = 4096
-- As in batching/lua/reply.lua.
local HEARD_MS = 10000

-- Built only in a flush in which some may have been asked before: nobody else shall pay for these functions. `door` is
-- what submit.lua knows: refusal, over_rate, track, id_of, tats, spent, unheld, now, most_memory, prefix.
-- Returns the judge of such requests, and what is to be called when all have been judged.
local function recognition(door)
  local replies, results, to = {}, {}, false

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

  -- A kept answer of this edition of the model: what stands before the task id, and what follows it; else nothing.
  local function kept_answer(key, edition)
    local entry = redis.pcall('GET', key)
    if type(entry) ~= 'string' then return nil end
    local of, size, at = string.match(entry, '^([^\n]*)\n(%d+)\n()')
    if of ~= edition then return nil end
    return string.sub(entry, at, at + size - 1), string.sub(entry, at + size)
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

  -- Take a waiting request out of its queue, be it of this very flush; whether it was there.
  local function withdraw(model, rank, message)
    local fresh, found = model.fresh[rank] or {}, false
    for j = #fresh, 1, -1 do
      if fresh[j] == message then
        table.remove(fresh, j)
        found = true
        break
      end
    end
    local at = model.queues + 2 * rank
    local queue = KEYS[at]
    if not found and redis.call('LPOS', queue, message, 'RANK', -1, 'MAXLEN', SEARCHED) then
      found = redis.call('LREM', queue, -1, message) == 1
    elseif not found and redis.call('LPOS', queue, message, 'MAXLEN', SEARCHED) then
      found = redis.call('LREM', queue, 1, message) == 1
    end
    if not found then return false end
    -- With no thresholds a queue in which nothing is put has not been counted.
    if model.depths[rank] then model.depths[rank], model.waiting = model.depths[rank] - 1, model.waiting - 1 end
    local key = string.sub(message, KEY, KEY + 7)
    if key ~= NO_KEY then door.unheld[#door.unheld + 1] = {KEYS[at + 1], key} end
    return true
  end

  -- What becomes of one more that asks this: 'lead', for all who come after it; 'join' those who wait; 'alone'.
  local function part_in(asked, class, deadline, queue_limit, size)
    local first, rank, due = string.match(redis.call('HGET', asked, '*') or '', '^(.-);(%d);(%d+)$')
    if not first then return 'lead' end
    if tonumber(due) <= door.now then
      -- Lost, or so late that nobody should wait for it; if it comes to an end, then to its own.
      redis.call('HDEL', asked, first, '*')
      return 'lead'
    end
    local there = redis.call('HLEN', asked)
    if there > MOST_WAITERS or there * size > MOST_BYTES then return 'alone' end
    rank = tonumber(rank) + 1
    if class.rank < rank and not door.refusal(class, deadline, queue_limit) then
      -- The first goes on waiting, for this one.
      local kept = redis.call('HGET', asked, first)
      if kept and withdraw(class.model, rank, string.sub(kept, 2)) then return 'lead' end
    end
    return 'join'
  end

  local function enter(asked, class, id, message, deadline, leads)
    redis.call('HSET', asked, id, (class.rank - 1) .. message)
    if leads then redis.call('HSET', asked, '*', string.format('%s;%d;%.0f', id, class.rank - 1, door.now + deadline)) end
    if redis.call('PTTL', asked) < deadline + GRACE_MS then redis.call('PEXPIRE', asked, deadline + GRACE_MS) end
  end

  -- Why one more of a class whose requests may have been asked before does not go into the queue; as `refusal`.
  local function known_before(class, deadline, queue_limit, i, head)
    local request_key, claim, fingerprint, kept, asked, channel =
      string.match(ARGV[i + 3], '^(.-)\n(.-)\n(.-)\n(.-)\n(.-)\n(.*)$')
    local rest, model = ARGV[i + 4], class.model
    local id = door.id_of(rest)
    ARGV[i + 3], to = request_key, channel
    local why, due = door.over_rate(class)
    if why then return why, due end
    if claim ~= '' then
      local known, same = first_of(claim, fingerprint)
      if known then spend(class, due) end
      if known and not same then return CONFLICT, 0 end
      if known then return REPEATED, known end
    end
    local before, after, part
    if model.memory <= door.most_memory then
      if kept ~= '' then before, after = kept_answer(kept, edition_of(model)) end
      if asked ~= '' and not before then
        -- What is wrong with that key must not cost anybody an answer.
        local fine, found = pcall(part_in, asked, class, deadline, queue_limit, #rest)
        part = fine and found
      end
    end
    if before then
      answer(class, before, after, rest, request_key)
      why = ANSWERED
    elseif part == 'join' then
      if string.byte(rest, 1) == 49 then door.track(rest, deadline, request_key) end
      why = JOINED
    else
      why, due = door.refusal(class, deadline, queue_limit)
      if why then return why, due end
    end
    if why then spend(class, due) end
    if part == 'join' or part == 'lead' then enter(asked, class, id, head .. rest, deadline, part == 'lead') end
    if claim ~= '' then
      redis.call('SET', claim, fingerprint .. ';' .. id, 'PX', deadline + field(rest, TTL - door.prefix, 9))
    end
    return why, due
  end

  local function conclude()
    local heard = #replies > 0 and redis.call('PUBLISH', to, '[' .. table.concat(replies, ',') .. ']') > 0
    for j = 1, #results, 3 do
      redis.call('SET', results[j], results[j + 1], 'PX', heard and math.min(results[j + 2], HEARD_MS) or results[j + 2])
    end
    for _, each in ipairs(door.unheld) do
      if redis.call('HINCRBY', each[1], each[2], -1) <= 0 then redis.call('HDEL', each[1], each[2]) end
    end
  end

  return known_before, conclude
end
