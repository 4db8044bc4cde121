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
