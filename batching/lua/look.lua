-- KEYS  1… queues, highest tier first
-- Returns {now_ms, depths, oldest enqueued_ms (0: unknown or empty)}.
local depths, oldest = {}, {}
for i = 1, #KEYS do
  depths[i] = redis.call('LLEN', KEYS[i])
  oldest[i] = 0
  if depths[i] > 0 then
    local last = redis.call('LINDEX', KEYS[i], -1)
    if stamped(last) then oldest[i] = field(last, ENQUEUED, 13) end
  end
end
return {now_ms(), depths, oldest}
