-- Store the outcomes of a batch, tell whoever waits, and drop the lease, all or nothing.
--
-- KEYS  1 lease  2 leases of the worker  3 dead letters (zset); each is a hash at that name, a colon, and its task id
--       where others may ask the same: 4 beginning of the names of kept answers (strings)  5 which there are (list)
--       6 the model's edition (string)  7 beginning of the names of marks (strings)  8 of those who wait (hashes)
--       9 cancelled (zset)  10 bell  11… queues, highest tier first
-- ARGV  1 batch id  2 '1' when nothing of the batch remains, else '0'  3 dead letters to keep  4 for how long, in ms
--       5 number of reply channels  6 number of the arguments of the last kind  7… the channels
--       then per run of outcomes that have these in common: result TTL in ms (0: store none), channel number (0: none), the
--       record of a dead letter (JSON), or '', '1' to publish it on Celery's own channel for the task as well, '2' the same
--       of a foreign one (batching/request.py), else '0', words of an outcome, position of the first in the lease, number of outcomes, which stand there behind each other;
--       then per outcome: task id, result (JSON), and, if it is something to others, what (coalescing.lua)
--       then, if any is something to others: what kept answers may take in all, in bytes, the time of the claim, the names of
--       the tiers
-- Returns the number stored, or -1 when the lease is gone: somebody else has the requests now, and will answer them; then
-- the ids of foreign ones that are another's, each behind a '!'; then who else was settled along with them (coalescing.lua).
if redis.call('EXISTS', KEYS.lease) == 0 then return {-1} end
local at, last = ARGV.width + 1 + ARGV.channels, #ARGV - ARGV.common
local noted = last < #ARGV and {}
local stored = 0

local function letter(id)
  return KEYS.dead .. ':' .. id
end

local function bury(position, id, record)
  local now = now_ms()
  local entry = redis.call('LINDEX', KEYS.lease, position)
  redis.call('HSET', letter(id), 'message', string.sub(entry, 3), 'rank', string.sub(entry, 1, 1), 'record', record)
  redis.call('ZADD', KEYS.dead, now, id)
  local surplus = redis.call('ZCARD', KEYS.dead) - tonumber(ARGV.max_dead)
  local old = redis.call('ZRANGEBYSCORE', KEYS.dead, '-inf', string.format('%.0f', now - ARGV.max_dead_age_ms), 'LIMIT', 0, 100)
  if surplus > 0 then old = redis.call('ZRANGE', KEYS.dead, 0, surplus - 1) end
  for i = 1, #old do
    redis.call('ZREM', KEYS.dead, old[i])
    redis.call('DEL', letter(old[i]))
  end
end

-- While the lease lasts, the place of what has been settled is empty: a repeat of the call finds it so.
local function settled_before(position)
  return ARGV.last == '0' and redis.call('LINDEX', KEYS.lease, position) == ''
end

-- Whether a frontend's request has that id: its state as scripts write it, or a result that has an owner.
local STATE = '^{"status":"%u+","result":null,"traceback":null,"children":%[%],"date_done":null'
local OWNED = '^{"status":"%u+","owned":true'
local refused = {}
local function is_anothers(id)
  local there = redis.pcall('GETRANGE', 'celery-task-meta-' .. id, 0, 95)
  return type(there) == 'string' and (string.find(there, STATE) or string.find(there, OWNED))
end

local function settle(at, position, ttl, channel, record, announce, foreign)
  local id, result = ARGV[at - 1 + OutcomeWords.task_id], ARGV[at - 1 + OutcomeWords.result]
  if foreign and is_anothers(id) then
    refused[#refused + 1] = '!' .. id
    if ARGV.last == '0' then redis.call('LSET', KEYS.lease, position, '') end
    return
  end
  if record ~= '' then bury(position, id, record) end
  local key = 'celery-task-meta-' .. id
  if ttl ~= '0' then
    store(key, result, ttl, not announce and channel)
    if announce then redis.call('PUBLISH', key, result) end
  end
  if channel then reply(channel, id, result) end
  if ARGV.last == '0' then redis.call('LSET', KEYS.lease, position, '') end
  stored = stored + 1
end

while at <= last do
  local run = at - 1
  local ttl, number, record = ARGV[run + OutcomeRun.ttl_ms], tonumber(ARGV[run + OutcomeRun.channel]), ARGV[run + OutcomeRun.record]
  local announce, foreign = ARGV[run + OutcomeRun.announce] ~= '0', ARGV[run + OutcomeRun.announce] == '2'
  local words, position = tonumber(ARGV[run + OutcomeRun.words]), tonumber(ARGV[run + OutcomeRun.position])
  local first = at + OutcomeRun.width
  at = first + words * ARGV[run + OutcomeRun.outcomes]
  for i = first, at - 1, words do
    if not settled_before(position) then
      settle(i, position, ttl, number > 0 and ARGV[ARGV.width + number], record, announce, foreign)
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
for i = 1, #refused do table.insert(others, i + 1, refused[i]) end
return others
