-- Return what a lease still holds to the head of its queues, in the old order.
--
-- KEYS  1 lease  2 leases of the worker  3 bell  4… queues, highest tier first
-- ARGV  1 batch id  2 '1' to count an attempt (it had reached an executor), '0' if it never did
-- Returns the number given back, or -1 when the lease is gone.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end

-- Anybody else's message: the count goes into a header, without a JSON round trip (cjson turns [] into {}).
local COUNTED = '"headers": {"bunch_attempt": '
local function count_foreign(message)
  local from, to = string.find(message, COUNTED, 1, true)
  if from then
    local comma = string.find(message, ',', to + 1, true)
    local n = tonumber(string.sub(message, to + 1, comma - 1)) + 1
    return string.sub(message, 1, to) .. n .. string.sub(message, comma)
  end
  -- Inside a JSON string the quotes would be escaped, so the first match is the real key.
  from, to = string.find(message, '"headers": {', 1, true)
  if not from then return message end
  return string.sub(message, 1, from - 1) .. COUNTED .. '1, ' .. string.sub(message, to + 1)
end

local function count_ours(message)
  local attempt = math.min(field(message, ATTEMPT, 2) + 1, 99)
  local deadline = string.sub(message, DEADLINE, DEADLINE + 12)
  -- It has waited its turn once: from here on only its deadline counts, not the queue's age limit.
  return string.sub(message, 1, LIMIT - 1) .. deadline .. string.sub(message, LIMIT + 13, ATTEMPT - 1)
    .. string.format('%02d', attempt) .. string.sub(message, ATTEMPT + 2)
end

local entries = redis.call('LRANGE', KEYS[1], 1, -1)
local returned = 0
for i = #entries, 1, -1 do
  local entry = entries[i]
  if #entry > 0 then
    local rank, message = tonumber(string.sub(entry, 1, 1)), string.sub(entry, 3)
    local ours = stamped(message)
    if ARGV[2] == '1' then
      if ours then message = count_ours(message) else message = count_foreign(message) end
    end
    if ours and tracked(message) then
      local id = task_id(message)
      redis.call('SET', 'celery-task-meta-' .. id, state_of(id, 'PENDING'), 'XX', 'KEEPTTL')
    end
    redis.call('RPUSH', KEYS[4 + rank], message)
    returned = returned + 1
  end
end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
if returned > 0 and redis.call('EXISTS', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], 1) end
return returned
