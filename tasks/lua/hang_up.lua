-- Take back requests whose callers have gone. Those that an executor has already are computed all the same.
--
-- KEYS  1 cancelled (zset)   ARGV  1 how long to remember them, in ms  2… task ids
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[i]) end
return #ARGV - 1
