-- Say what waits for a model, after waking the retries whose pause is over.
--
-- KEYS  delayed: zset; then the queues, highest tier first
-- Returns {now_ms, depths, oldest enqueued_ms (0: unknown or empty), deadlines of those (0: none)}.
local now = now_ms()
wake_delayed(KEYS.delayed, KEYS.width + 1, now)
local depths, oldest, due = {}, {}, {}
for i = 1, #KEYS - KEYS.width do
  depths[i] = redis.call('LLEN', KEYS[KEYS.width + i])
  oldest[i], due[i] = 0, 0
  if depths[i] > 0 then
    local last = redis.call('LINDEX', KEYS[KEYS.width + i], -1)
    if stamped(last) then oldest[i], due[i] = field(last, ENQUEUED, 13), field(last, DEADLINE, 13) end
  end
end
return {now, depths, oldest, due}
