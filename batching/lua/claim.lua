-- Pop a batch and lease it, in one step: there is no moment at which a message is neither queued nor leased.
--
-- KEYS  lease: list; leases: of the worker (set); workers: zset; cancelled: zset; share: hash; delayed: zset;
--       bell
--       then the queues, highest tier first; then for each queue who waits in it (hash)
-- ARGV  batch_id; worker_id; model; size; ageing_ms; aged_share: share of an aged queue; margin_ms;
--       max_bytes: of messages, unless there is one alone; takes: how many of each queue, 'n,n,n', where the batch is
--       of several shards and whoever asks shares it out; else ''
--       least: how many must wait, else nothing is taken; and nothing either if a known deadline is nearer than calm_ms
--       then the guaranteed share of each queue (0 for the highest; below 0: paused)
--       then the size of a batch of suspects after 1, 2, … lost attempts
-- Returns {now_ms, marks, messages, depths, oldest enqueued_ms, deadlines of those}. The marks are those of the lease
-- (lease.lua); verdict '-' run it, 'x' its time has passed, 'h' its deadline is nearer than the margin, 'c' its caller
-- took it back. Those three are leased as well, since somebody must still be told, and do not count towards the size. A
-- repeated call with the same batch id returns the same messages.
--
-- Whatever an executor died of may be in the batch that it had inside, so those requests are suspects: they run among
-- themselves, in smaller batches each time, the last time alone. They stand at the head of their queue.
local QUEUES = KEYS.width
-- Keeps one call short when a long queue has expired as a whole; the next call goes on.
local MAX_DROPPED = 256
-- How deep a claim looks for callers who have little in the queue, when others have much.
local WINDOW = 512
-- And how many bytes it reads there, beyond those of a batch.
local WINDOW_BYTES = 16 * 1024 * 1024
-- Messages of a first read, whose sizes are only guessed.
local STEP = 8
local MOST_AT_ONCE = 32
-- What is copied of a queue beyond the batch, and deleted again: so many times the batch's messages, and so many bytes.
-- Up to there a copy costs no more than writing the messages anew.
local MOST_COPIED = 7
local MOST_COPIED_BYTES = 256 * 1024

local now = now_ms()
local count = (#KEYS - QUEUES) / 2
local size = tonumber(ARGV.size)
local margin = tonumber(ARGV.margin_ms)
local most_bytes = tonumber(ARGV.max_bytes)
local SHARES = ARGV.width
local SUSPECTS = SHARES + count

local function view()
  local depths, oldest, due = {}, {}, {}
  for i = 1, count do
    depths[i] = redis.call('LLEN', KEYS[QUEUES + i])
    oldest[i], due[i] = 0, 0
    if depths[i] > 0 then
      local last = redis.call('LINDEX', KEYS[QUEUES + i], -1)
      if stamped(last) then oldest[i], due[i] = field(last, ENQUEUED, 13), field(last, DEADLINE, 13) end
    end
  end
  return depths, oldest, due
end

if redis.call('EXISTS', KEYS.lease) == 1 then
  local lease, messages = redis.call('LRANGE', KEYS.lease, 0, -1), {}
  for i = #lease, 2, -1 do messages[#messages + 1] = lease[i] end
  return {now, marks_of(lease[1]), messages, view()}
end

wake_delayed(KEYS.delayed, QUEUES + 1, now)

local function paused(i)
  return tonumber(ARGV[SHARES + i]) < 0
end

if ARGV.least ~= '0' then
  local depths, oldest, due = view()
  local soon, there, calm = now + tonumber(ARGV.calm_ms), 0, true
  for i = 1, count do
    if not paused(i) then
      there = there + depths[i]
      if due[i] > 0 and due[i] < soon then calm = false end
    end
  end
  if there < tonumber(ARGV.least) or not calm then return {now, '', {}, depths, oldest, due} end
end

-- Suspects first: a batch of theirs takes from one queue alone.
local function suspect_size(message, ours)
  local lost
  if ours then lost = string.byte(message, LOST) - 48 else lost = attempts(message) end
  if lost == 0 then return nil end
  -- The stamp counts no further, so that is as many as there can be.
  return tonumber(ARGV[lost >= 9 and #ARGV or math.min(SUSPECTS + lost, #ARGV)])
end
local only
local aged, heads = {}, {}
for i = 1, count do
  local head = not paused(i) and redis.call('LINDEX', KEYS[QUEUES + i], -1)
  heads[i] = head and #head or 1
  local ours = head and stamped(head)
  local limit = head and suspect_size(head, ours)
  if limit then
    only = i
    size = math.min(size, limit)
    break
  end
  -- Of anybody else's message the age is not known.
  local age = ours and now - field(head, ENQUEUED, 13)
  -- Below 0: Redis' clock has gone back since.
  aged[i] = ours and (age < 0 or age >= tonumber(ARGV.ageing_ms))
end

local depths, waiting = {}, 0
for i = 1, count do
  depths[i] = (paused(i) or (only and only ~= i)) and 0 or redis.call('LLEN', KEYS[QUEUES + i])
  waiting = waiting + depths[i]
end
if waiting == 0 then return {now, '', {}, view()} end

local shares, credits = {}, {}
local contended = waiting > size
for i = 1, count do
  shares[i] = tonumber(ARGV[SHARES + i])
  if aged[i] then shares[i] = math.max(shares[i], tonumber(ARGV.aged_share)) end
  credits[i] = contended and i > 1 and depths[i] > 0 and tonumber(redis.call('HGET', KEYS.share, i) or '0') or 0
end
local takes, saved
if ARGV.takes == '' then
  takes, saved = allocate(depths, size, credits, shares)
else
  takes, contended = as_given(ARGV.takes, depths, size), false
end
if contended then
  for i = 1, count do
    redis.call('HSET', KEYS.share, i, string.format('%.6f', saved[i]))
  end
end

-- Messages of the batch that still lie at the head of their queue, by queue; `scattered`: others do not any more.
local chosen = {}
for i = 1, count do chosen[i] = 0 end
local scattered = false

-- Up to `most` messages behind those, and their bytes. It reads in steps, and stops once it has `room` bytes: a claim
-- costs what it takes, not what waits. `usual`: the bytes of a message, as far as is known.
local function read_messages(i, most, room, usual, messages)
  local before, read = #messages, 0
  local step = STEP
  repeat
    local had = #messages - before
    step = math.min(step, most - had, math.max(1, math.floor((room - read) / usual)))
    local behind = chosen[i] + #messages
    local next_ones = redis.call('LRANGE', KEYS[QUEUES + i], -behind - step, -behind - 1)
    for j = #next_ones, 1, -1 do
      messages[#messages + 1] = next_ones[j]
      read = read + #next_ones[j]
    end
    had = #messages - before
    local ended = #next_ones < step
    usual, step = read / had, math.min(4 * had, MOST_AT_ONCE)
  until ended or had == most or read > room
  return read
end

-- Take the picked ones of the messages that were read out of the queue; `last` is the last of them. The others are not
-- written anew: there may be hundreds.
local function take_out(i, picked, last)
  local queue, first, marked = KEYS[QUEUES + i], 1, 0
  while picked[first] do first = first + 1 end
  if chosen[i] + first > 1 then redis.call('LTRIM', queue, 0, -chosen[i] - first) end
  for j = first, last do
    if picked[j] then
      redis.call('LSET', queue, first - j - 1, SETTLED)
      marked = marked + 1
    end
  end
  if marked > 0 then redis.call('LREM', queue, -marked, SETTLED) end
  chosen[i], scattered = 0, true
end

-- How many of each key no longer wait, by queue.
local held = {}
local any_cancelled = redis.call('EXISTS', KEYS.cancelled) == 1
local entries, marks, dropped, taken, bytes = {}, {}, 0, 0, 0
local closed = false

-- Whether the head of a queue is what round robin would take: nobody whose requests wait behind it has two places fewer
-- than somebody else. `counts` has the places of each key. The counts of waiting requests may be too low: then some of
-- the queue are nobody's, and the answer is no.
local function is_fair(i, counts)
  local keys, most = {}, 0
  for key, places in pairs(counts) do
    keys[#keys + 1], most = key, math.max(most, places)
  end
  local all, counted = redis.call('HMGET', KEYS[QUEUES + count + i], unpack(keys)), 0
  for j = 1, #keys do
    local queued, places = tonumber(all[j] or 0), counts[keys[j]]
    if queued > places and places < most - 1 then return false end
    counted = counted + queued
  end
  return counted >= depths[i]
end

-- The next of a queue, and whether they lie at its head; when more wait than are wanted or fit, shared out fairly among
-- the keys that sent them.
local function next_of(i, want)
  local room, messages = most_bytes - bytes, {}
  local length = read_messages(i, want, room, heads[i] or 1, messages)
  if #messages == 0 then return nil end
  if only or (depths[i] <= want and length <= room) then return messages, true end
  local keys, counts, named, twice = {}, {}, false, false
  local before, first = 0, 0
  for j = 1, #messages do
    local key = key_of(messages[j])
    -- Those that would be taken if nothing were shared, and the one that did not fit.
    if before <= room then
      named, twice, first = named or key ~= NO_KEY, twice or counts[key], j
      before = before + #messages[j]
    end
    keys[j], counts[key] = key, (counts[key] or 0) + 1
  end
  if not named or want >= WINDOW then return messages, true end
  -- They all fit, and are of different keys; or the first alone is too much.
  if (length <= room and not twice) or (length > room and first == 1) then return messages, true end
  local whole = length <= room or counts[keys[1]] == #messages
  if whole and chosen[i] == 0 and not scattered and is_fair(i, counts) then return messages, true end
  local at_once = #messages
  local more = read_messages(i, WINDOW - at_once, room + WINDOW_BYTES - length, length / at_once, messages)
  if #messages == at_once and length <= room then return messages, true end
  for j = at_once + 1, #messages do keys[j] = key_of(messages[j]) end
  local picked = fair_pick(keys, want)
  local order, finish, sums = {}, {}, {}
  for j = 1, #messages do
    if picked[j] then
      order[#order + 1] = j
      sums[keys[j]] = (sums[keys[j]] or 0) + #messages[j]
      finish[j] = sums[keys[j]]
    end
  end
  -- They do not all fit: fair by bytes then, but the oldest first, so that nobody is overtaken for ever.
  if length + more > room then
    finish[order[1]] = 0
    table.sort(order, function(a, b)
      if finish[a] ~= finish[b] then return finish[a] < finish[b] end
      return a < b
    end)
    local sum, fitting = 0, 0
    for j = 1, #order do
      sum = sum + #messages[order[j]]
      if sum > room and (j > 1 or #entries > 0) then break end
      fitting = j
    end
    closed = fitting < #order
    for j = #order, fitting + 1, -1 do
      picked[order[j]] = false
      order[j] = nil
    end
  end
  local fair, last, in_order = {}, 0, true
  for j = 1, #order do
    fair[j] = messages[order[j]]
    last, in_order = math.max(last, order[j]), in_order and order[j] == j
  end
  if not in_order then take_out(i, picked, last) end
  return fair, in_order
end

-- Of the last stamp that was found good. Nearly always it is that of the message before, up to the id.
local read, limit, deadline, caller, suspect, followed
local function pop(i, want)
  while want > 0 and dropped < MAX_DROPPED and not closed do
    local messages, at_head = next_of(i, want)
    if not messages then return want end
    local rank = (i - 1) .. ''
    local to_run = rank .. '-'
    local counts = held[i] or {}
    held[i] = counts
    for j = 1, #messages do
      local message = messages[j]
      local verdict
      local ours = stamped(message)
      local limit_here
      if ours then
        if read ~= good then
          read, limit, deadline = good, field(message, LIMIT, 13), field(message, DEADLINE, 13)
          caller = string.sub(message, KEY, KEY + 7)
          suspect, followed = suspect_size(message, true), tracked(message)
        end
        limit_here = suspect
      else
        limit_here = suspect_size(message, false)
      end
      bytes = bytes + #message
      if (limit_here ~= nil) ~= (only ~= nil) or (limit_here and (taken >= limit_here or taken >= size))
        or (bytes > most_bytes and #entries > 0) then
        -- A suspect among others, the other way round, or too much: it and what stands behind it wait for the next
        -- batch.
        if not at_head then
          for k = #messages, j, -1 do redis.call('RPUSH', KEYS[QUEUES + i], messages[k]) end
        end
        closed = true
        return 0
      end
      if limit_here and limit_here < size then
        size = limit_here
        want = size - taken
      end
      if ours then
        if caller ~= NO_KEY then counts[caller] = (counts[caller] or 0) + 1 end
        if limit > 0 and limit <= now then
          verdict = 'x'
        elseif margin > 0 and deadline > 0 and deadline <= now + margin then
          verdict = 'h'
        elseif any_cancelled and redis.call('ZREM', KEYS.cancelled, task_id(message)) == 1 then
          verdict = 'c'
        elseif followed then
          -- Over no end: it may be another's, or have been revoked.
          local id = task_id(message)
          local status = string.match(redis.call('GETRANGE', result_key(id), 0, 31), '^{"status":%s*"(%u+)"')
          if status == 'PENDING' then
            redis.call('SET', result_key(id), state_of(id, 'STARTED'), 'KEEPTTL')
          elseif status == 'REVOKED' then
            verdict = 'c'
          end
        end
      end
      local place = #entries + 1
      entries[place] = message
      if at_head then chosen[i] = chosen[i] + 1 end
      if verdict then
        dropped = dropped + 1
        marks[place] = rank .. verdict
      else
        want = want - 1
        taken = taken + 1
        marks[place] = to_run
      end
    end
  end
  return want
end

local short = 0
for i = 1, count do short = short + pop(i, takes[i]) end
-- Places freed by the expired and cancelled go to whoever still waits.
if dropped > 0 then
  for i = 1, count do
    if short > 0 and not paused(i) then short = pop(i, short) end
  end
end

-- Lua's stack has room for so many arguments, and some more.
local MOST_WORDS = 1000

-- Count those keys' requests off. What came back from a lease or a pause was not counted again, so a count may be too
-- low, never too high for long.
local function count_off(name, counts, keys)
  local all, kept, gone = redis.call('HMGET', name, unpack(keys)), {}, {}
  for j = 1, #keys do
    local left = tonumber(all[j] or 0) - counts[keys[j]]
    if left > 0 then
      kept[#kept + 1], kept[#kept + 2] = keys[j], left
    elseif all[j] then
      gone[#gone + 1] = keys[j]
    end
  end
  if #kept > 0 then redis.call('HSET', name, unpack(kept)) end
  if #gone > 0 then redis.call('HDEL', name, unpack(gone)) end
end

for i, counts in pairs(held) do
  local name, keys = KEYS[QUEUES + count + i], {}
  for key in pairs(counts) do
    keys[#keys + 1] = key
    if #keys == MOST_WORDS then
      count_off(name, counts, keys)
      keys = {}
    end
  end
  if #keys > 0 then count_off(name, counts, keys) end
end

-- Move the batch into its lease. The log on disk and a replica get the commands: where the messages are the head of one
-- queue, none of them carries a message. A copy is made of a queue that is not much larger than the batch.
local function lease_all()
  local queue, left
  for i = 1, count do
    if chosen[i] == #entries and not scattered then queue, left = KEYS[QUEUES + i], depths[i] - #entries end
  end
  if left == 0 then
    redis.call('RENAME', queue, KEYS.lease)
    return
  end
  if queue and #entries >= STEP and left <= MOST_COPIED * #entries then
    -- A server may forbid the first, and has no memory left for the second.
    local whole = redis.pcall('MEMORY', 'USAGE', queue, 'SAMPLES', 0)
    if type(whole) == 'number' and whole - bytes <= math.min(MOST_COPIED * bytes, MOST_COPIED_BYTES)
      and redis.pcall('COPY', queue, KEYS.lease) == 1 then
      redis.call('LTRIM', KEYS.lease, -#entries, -1)
      redis.call('LTRIM', queue, 0, -#entries - 1)
      return
    end
  end
  for i = 1, count do
    if chosen[i] > 0 then redis.call('LTRIM', KEYS[QUEUES + i], 0, -chosen[i] - 1) end
  end
  for i = 1, #entries, MOST_WORDS do
    redis.call('LPUSH', KEYS.lease, unpack(entries, i, math.min(i + MOST_WORDS - 1, #entries)))
  end
end

marks = table.concat(marks)
if #entries > 0 then
  lease_all()
  redis.call('LPUSH', KEYS.lease, ARGV.worker_id .. '\n' .. ARGV.model .. '\n' .. marks)
  redis.call('SADD', KEYS.leases, ARGV.batch_id)
  -- A claim is a heartbeat: no lease may exist whose worker nobody watches.
  redis.call('ZADD', KEYS.workers, now, ARGV.worker_id)
end
local after, oldest, due = view()
-- Where something waits, there is a token: an executor that comes free may go to the bell and need not look.
local more = false
for i = 1, count do more = more or (after[i] > 0 and not paused(i)) end
if more and redis.call('EXISTS', KEYS.bell) == 0 then redis.call('LPUSH', KEYS.bell, 1) end
return {now, marks, entries, after, oldest, due}
