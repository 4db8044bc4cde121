-- Put some requests of a batch aside, for a pause: to be tried again, an attempt counted, or because it is not yet
-- their time (Celery's `eta`).
--
-- KEYS  lease; leases: of the worker; delayed: zset
-- ARGV  batch_id; last: '1' when nothing of the batch remains, else '0'; attempt: '1' to count one
--       then per request a Pause: position: in the lease; pause_ms
-- Returns the number put aside, or -1 when the lease is gone. A repeat finds them settled, and does nothing.
if redis.call('EXISTS', KEYS.lease) == 0 then return -1 end
local now, marks = now_ms(), marks_of(redis.call('LINDEX', KEYS.lease, 0))
local count = 0
for at = ARGV.width + 1, #ARGV, Pause.width do
  local position = ARGV[at - 1 + Pause.position]
  local message = redis.call('LINDEX', KEYS.lease, -position)
  if message and message ~= SETTLED then
    if ARGV.attempt == '1' then message = with_attempt(message, false) end
    local rank = rank_at(marks, position)
    if ARGV.attempt == '1' then rank = retry_mark(rank) end
    redis.call('ZADD', KEYS.delayed, now + ARGV[at - 1 + Pause.pause_ms], rank .. message)
    redis.call('LSET', KEYS.lease, -position, SETTLED)
    if stamped(message) and tracked(message) then
      local id = task_id(message)
      redis.call('SET', result_key(id), state_of(id, 'PENDING'), 'XX', 'KEEPTTL')
    end
    count = count + 1
  end
end
if ARGV.last == '1' then
  redis.call('DEL', KEYS.lease)
  redis.call('SREM', KEYS.leases, ARGV.batch_id)
end
return count
