-- Cancel requests whose callers have disconnected. Those that an executor has already are computed all the same.
--
-- KEYS  cancelled: zset
-- ARGV  keep_ms: how long to remember them; then the task ids
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS.cancelled, '-inf', string.format('%.0f', now))
for i = ARGV.width + 1, #ARGV do redis.call('ZADD', KEYS.cancelled, now + ARGV.keep_ms, ARGV[i]) end
return #ARGV - ARGV.width
