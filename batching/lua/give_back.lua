-- Return what a lease still holds to the head of its queues, in the old order.
--
-- KEYS  lease; leases: of the worker; bell; then the queues, highest tier first
-- ARGV  batch_id; blame: '0' when it never reached an executor, '1' to count an attempt, '2' when the executor died of
--       it, perhaps; losses: for how many that last one counts at least
-- Returns the number given back, or -1 when the lease is gone.
if redis.call('EXISTS', KEYS.lease) == 0 then return -1 end

local lease = in_this_form(redis.call('LRANGE', KEYS.lease, 0, -1))
local marks, returned = marks_of(lease[1]), 0
for i = 2, #lease do
  local message = lease[i]
  if message ~= SETTLED then
    local rank = rank_at(marks, #lease - i + 1)
    local ours = stamped(message)
    if ARGV.blame ~= '0' then message = with_attempt(message, ARGV.blame == '2', tonumber(ARGV.losses)) end
    if ours and tracked(message) then
      local id = task_id(message)
      redis.call('SET', result_key(id), state_of(id, 'PENDING'), 'XX', 'KEEPTTL')
    end
    redis.call('RPUSH', KEYS[KEYS.width + 1 + rank], message)
    returned = returned + 1
  end
end
redis.call('DEL', KEYS.lease)
redis.call('SREM', KEYS.leases, ARGV.batch_id)
if returned > 0 and redis.call('EXISTS', KEYS.bell) == 0 then redis.call('LPUSH', KEYS.bell, 1) end
return returned
