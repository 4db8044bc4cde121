-- Say what waits for a model, after waking the retries whose pause is over.
--
-- KEYS  per shard: delayed: zset; then its queues, highest tier first. In a cluster it is one shard
-- ARGV  queues: per shard; without it, it is one shard
-- Returns {now_ms, and per shard: depths, oldest enqueued_ms (0: unknown or empty), deadlines of those (0: none)}.
local now, queues = now_ms(), tonumber(ARGV.queues) or #KEYS - 1
local found = {now}
for delayed = 1, #KEYS, 1 + queues do
  wake_delayed(KEYS[delayed], delayed + 1, now)
  local depths, oldest, due = {}, {}, {}
  for i = 1, queues do
    depths[i] = redis.call('LLEN', KEYS[delayed + i])
    oldest[i], due[i] = 0, 0
    if depths[i] > 0 then
      local last = redis.call('LINDEX', KEYS[delayed + i], -1)
      if stamped(last) then oldest[i], due[i] = field(last, ENQUEUED, 13), field(last, DEADLINE, 13) end
    end
  end
  local n = #found
  found[n + 1], found[n + 2], found[n + 3] = depths, oldest, due
end
return found
