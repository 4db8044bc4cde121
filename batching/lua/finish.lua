-- Store the outcomes of a batch, tell whoever waits, and drop the lease, all or nothing.
--
-- KEYS  1 lease  2 leases of the worker
-- ARGV  1 batch id  2 '1' when nothing of the batch remains, else '0'  3 number of reply channels  4… the channels
--       then per outcome: position in the lease, task id, result TTL in ms, channel number (0: none), result (JSON)
-- Returns the number stored, or -1 when the lease is gone: somebody else has the requests now, and will answer them.
-- Above this a reply carries the id alone and the frontend reads the stored key: a large value must not sit in the
-- output buffer of a subscriber that is slow (`client-output-buffer-limit pubsub`).
local MAX_INLINE = 65536

if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local channels = tonumber(ARGV[3])
local at = 4 + channels
local replies = {}
for c = 1, channels do replies[c] = {} end
local stored = 0
while at <= #ARGV do
  local position, id, ttl, channel, result = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]), ARGV[at + 4]
  local key = 'celery-task-meta-' .. id
  redis.call('SET', key, result, 'PX', ttl)
  redis.call('PUBLISH', key, result)
  if channel > 0 then
    local to = replies[channel]
    to[#to + 1] = #result <= MAX_INLINE and result or ('{"task_id":"' .. id .. '","status":"STORED"}')
  end
  if ARGV[2] == '0' then redis.call('LSET', KEYS[1], position, '') end
  stored = stored + 1
  at = at + 5
end
for c = 1, channels do
  if #replies[c] > 0 then
    redis.call('PUBLISH', ARGV[3 + c], '[' .. table.concat(replies[c], ',') .. ']')
  end
end
if ARGV[2] == '1' then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[2], ARGV[1])
end
return stored
