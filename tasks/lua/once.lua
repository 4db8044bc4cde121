-- Whether a request has been asked before: tasks/once.py says what for.

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

-- A kept answer of this edition of the model: what stands before the task id, and what follows it; else nothing.
local function kept_answer(key, edition)
  local entry = redis.pcall('GET', key)
  if type(entry) ~= 'string' then return nil end
  local of, size, at = string.match(entry, '^([^\n]*)\n(%d+)\n()')
  if of ~= edition then return nil end
  return string.sub(entry, at, at + size - 1), string.sub(entry, at + size)
end

-- The result of one that was not computed; batching/asked.py says of what it is made.
local function result_for(head, id, tier, tail)
  return head .. '"' .. id .. '","bunch":{"admission_ms":0,"queue_ms":0,"tier":"' .. tier .. '","attempt":1,' .. tail
end
