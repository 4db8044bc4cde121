-- Store the outcomes of a batch, tell whoever waits, and drop the lease, all or nothing.
--
-- KEYS  1 lease  2 leases of the worker  3 dead letters (zset); each is a hash at that name, a colon, and its task id
-- ARGV  1 batch id  2 '1' when nothing of the batch remains, else '0'  3 dead letters to keep  4 for how long, in ms
--       5 number of reply channels  6… the channels
--       then per outcome: position in the lease, task id, result TTL in ms (0: store none), channel number (0: none), result (JSON),
--       the record of a dead letter (JSON), or '', and '1' to publish it on Celery's own channel for the task as well
-- Returns the number stored, or -1 when the lease is gone: somebody else has the requests now, and will answer them.
-- Above this a reply carries the id alone and the frontend reads the stored key: a large value must not sit in the
-- output buffer of a subscriber that is slow (`client-output-buffer-limit pubsub`).
local MAX_INLINE = 65536

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local channels = tonumber(ARGV[5])
local at = 6 + channels
local replies = {}
for c = 1, channels do replies[c] = {} end
local stored = 0

local function letter(id)
  return KEYS[3] .. ':' .. id
end

local function bury(position, id, record)
  local now = now_ms()
  local entry = redis.call('LINDEX', KEYS[1], position)
  redis.call('HSET', letter(id), 'message', string.sub(entry, 3), 'rank', string.sub(entry, 1, 1), 'record', record)
  redis.call('ZADD', KEYS[3], now, id)
  local surplus = redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[3])
  local old = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - ARGV[4]), 'LIMIT', 0, 100)
  if surplus > 0 then old = redis.call('ZRANGE', KEYS[3], 0, surplus - 1) end
  for i = 1, #old do
    redis.call('ZREM', KEYS[3], old[i])
    redis.call('DEL', letter(old[i]))
  end
end

-- While the lease lasts, the place of what has been settled is empty: a repeat of the call finds it so.
local function settled_before(position)
  return ARGV[2] == '0' and redis.call('LINDEX', KEYS[1], position) == ''
end

local function settle(at)
  local position, id, ttl, channel, result = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  if ARGV[at + 5] ~= '' then bury(position, id, ARGV[at + 5]) end
  local key = 'celery-task-meta-' .. id
  if ttl ~= '0' then
    redis.call('SET', key, result, 'PX', ttl)
    if ARGV[at + 6] == '1' then redis.call('PUBLISH', key, result) end
  end
  if channel > 0 then
    local to = replies[channel]
    to[#to + 1] = #result <= MAX_INLINE and result or ('{"task_id":"' .. id .. '","status":"STORED"}')
  end
  if ARGV[2] == '0' then redis.call('LSET', KEYS[1], position, '') end
  stored = stored + 1
end

while at <= #ARGV do
  if not settled_before(ARGV[at]) then settle(at) end
  at = at + 7
end
for c = 1, channels do
  if #replies[c] > 0 then
    redis.call('PUBLISH', ARGV[5 + c], '[' .. table.concat(replies[c], ',') .. ']')
  end
end
if ARGV[2] == '1' then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[2], ARGV[1])
end
return stored
