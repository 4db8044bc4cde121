-- Store the outcomes of a batch, tell whoever waits, and drop the lease, all or nothing.
--
-- KEYS  lease; leases: of the worker; dead: dead letters (zset), each a hash at that name, a colon, and its task id
--       where others may ask the same: cached: beginning of the names of kept answers (strings); kept: which there are
--       (list); edition: of the model (string); asked: beginning of the names of marks (strings); joined: of those who
--       wait (hashes); cancelled: zset; bell; then the queues, highest tier first
-- ARGV  batch_id; last: '1' when nothing of the batch remains, else '0'; max_dead: dead letters to keep;
--       max_dead_age_ms; channels: number of reply channels; common: number of the arguments of the last kind; then the
--       channels
--       then per run of outcomes that have these in common, an OutcomeRun: ttl_ms: of the results (0: store none);
--       channel: its number (0: none); record: of a dead letter (JSON), or ''; announce: '1' to publish it on Celery's
--       own channel for the task as well, '2' the same of a foreign one (batching/request.py), else '0'; words: of an
--       outcome; position: of the first in the lease; outcomes: how many stand there behind each other
--       then per outcome, OutcomeWords: task_id; result: JSON; asked: what it is to others, if anything
--       (coalescing.lua)
--       then, if any is something to others, AnswerArgs: max_bytes: what kept answers may take in all; claimed_ms: time
--       of the claim; tiers: their names
-- Returns the number stored, or -1 when the lease is gone: somebody else has the requests now, and will answer them;
-- then the ids of foreign ones that are another's, each behind a '!'; those of dead letters that went, behind a '~';
-- then who else was settled along with them
-- (coalescing.lua).
if redis.call('EXISTS', KEYS.lease) == 0 then return {-1} end
local at, last = ARGV.width + 1 + ARGV.channels, #ARGV - ARGV.common
local noted = last < #ARGV and {}
local stored = 0

local dropped = {}
local function letter(id)
  return KEYS.dead .. ':' .. id
end

local function bury(position, id, record)
  local now = now_ms()
  local message = redis.call('LINDEX', KEYS.lease, -position)
  local rank = rank_at(marks_of(redis.call('LINDEX', KEYS.lease, 0)), position)
  redis.call('HSET', letter(id), 'message', message, 'rank', rank, 'record', record)
  redis.call('ZADD', KEYS.dead, now, id)
  local surplus = redis.call('ZCARD', KEYS.dead) - tonumber(ARGV.max_dead)
  local aged = string.format('%.0f', now - ARGV.max_dead_age_ms)
  local old = redis.call('ZRANGEBYSCORE', KEYS.dead, '-inf', aged, 'LIMIT', 0, 100)
  if surplus > 0 then old = redis.call('ZRANGE', KEYS.dead, 0, surplus - 1) end
  for i = 1, #old do
    dropped[#dropped + 1] = '~' .. old[i]
    redis.call('ZREM', KEYS.dead, old[i])
    redis.call('DEL', letter(old[i]))
  end
end

local function settled_before(position)
  return ARGV.last == '0' and redis.call('LINDEX', KEYS.lease, -position) == SETTLED
end

-- Whether a frontend's request has that id: its state as scripts write it, or a result that has an owner.
local STATE = '^{"status":"%u+","result":null,"traceback":null,"children":%[%],"date_done":null'
local OWNED = '^{"status":"%u+","owned":true'
local refused = {}
local function is_anothers(id)
  local there = redis.pcall('GETRANGE', result_key(id), 0, 95)
  return type(there) == 'string' and (string.find(there, STATE) or string.find(there, OWNED))
end

local function settle(first, position, ttl, channel, record, announce, foreign)
  local id, result = ARGV[first - 1 + OutcomeWords.task_id], ARGV[first - 1 + OutcomeWords.result]
  if foreign and is_anothers(id) then
    refused[#refused + 1] = '!' .. id
    if ARGV.last == '0' then redis.call('LSET', KEYS.lease, -position, SETTLED) end
    return
  end
  if record ~= '' then bury(position, id, record) end
  local key = result_key(id)
  if ttl ~= '0' then
    store(key, result, ttl, not announce and channel)
    if announce then publish(key, result) end
  end
  if channel then reply(channel, id, result) end
  if ARGV.last == '0' then redis.call('LSET', KEYS.lease, -position, SETTLED) end
  stored = stored + 1
end

while at <= last do
  local run = at - 1
  local ttl, record = ARGV[run + OutcomeRun.ttl_ms], ARGV[run + OutcomeRun.record]
  local number = tonumber(ARGV[run + OutcomeRun.channel])
  local channel = number > 0 and ARGV[ARGV.width + number]
  local announce, foreign = ARGV[run + OutcomeRun.announce] ~= '0', ARGV[run + OutcomeRun.announce] == '2'
  local words, position = tonumber(ARGV[run + OutcomeRun.words]), tonumber(ARGV[run + OutcomeRun.position])
  local first = at + OutcomeRun.width
  at = first + words * ARGV[run + OutcomeRun.outcomes]
  if record == '' and not announce and words < OutcomeWords.width and ARGV.last == '1' then
    -- Nearly always: nothing but their results is of any interest.
    local kept, to = ttl ~= '0' and results_of(channel, ttl), channel and replies_of(channel)
    for i = first, at - 1, words do
      local id, result = ARGV[i - 1 + OutcomeWords.task_id], ARGV[i - 1 + OutcomeWords.result]
      if kept then
        local n = #kept
        kept[n + 1], kept[n + 2] = result_key(id), result
      end
      if to then to[#to + 1] = as_reply(id, result) end
    end
    stored, first = stored + (at - first) / words, at
  end
  for i = first, at - 1, words do
    if not settled_before(position) then
      settle(i, position, ttl, channel, record, announce, foreign)
      if words == OutcomeWords.width then noted[#noted + 1] = {i, position} end
    end
    position = position + 1
  end
end
if noted then settle_questions(noted, last + 1) end
send_replies()
if ARGV.last == '1' then
  redis.call('DEL', KEYS.lease)
  redis.call('SREM', KEYS.leases, ARGV.batch_id)
end
others[1] = stored
for i = 1, #dropped do refused[#refused + 1] = dropped[i] end
for i = 1, #refused do table.insert(others, i + 1, refused[i]) end
return others
