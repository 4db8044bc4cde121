-- Queue a dead letter again, under its own id.
--
-- KEYS  dead: dead letters (zset); letter: this one (hash); result; queue; bell
-- ARGV  task_id; time_ms: until its deadline, from now; result_ttl_ms; message: without a plain client's expiry
-- Returns 1, or 0 if another process took it first.
if redis.call('EXISTS', KEYS.letter) == 0 then return 0 end
local message = ARGV.message
local now = now_ms()
local state = state_of(ARGV.task_id, 'PENDING')
if stamped(message) then
  local deadline = string.format('%013d', now + ARGV.time_ms)
  message = HEAD .. deadline .. ';' .. deadline .. ';' .. string.format('%013d', now) .. ';00;0;1;'
    .. string.sub(message, TTL)
else
  -- In Celery's form, without a frontend's mark, or the outcome could not replace it (batching/lua/finish.lua).
  state = string.gsub(state, '":', '": ')
  local from, to = string.find(message, COUNTED, 1, true)
  if from then
    local rest = string.gsub(string.sub(message, to + 1), '^%d+,?%s*', '')
    message = string.sub(message, 1, from - 1) .. '"headers": {' .. rest
  end
end
redis.call('SET', KEYS.result, state, 'PX', ARGV.time_ms + ARGV.result_ttl_ms)
redis.call('LPUSH', KEYS.queue, message)
if redis.call('EXISTS', KEYS.bell) == 0 then redis.call('LPUSH', KEYS.bell, 1) end
redis.call('ZREM', KEYS.dead, ARGV.task_id)
redis.call('DEL', KEYS.letter)
return 1
