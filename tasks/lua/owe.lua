-- Note that the result of a request is to be pushed.
--
-- KEYS  callbacks: zset; callback: hash; bell
-- ARGV  task_id; look_ms: from now until a sender looks for the outcome; keep_ms: how long to keep the hash; now: '1'
--       to ring at once; then the hash's fields and values
-- Returns 1. A second call sets the same fields, and the time anew.
redis.call('HSET', KEYS.callback, unpack(ARGV, ARGV.width + 1))
redis.call('PEXPIRE', KEYS.callback, ARGV.keep_ms)
redis.call('ZADD', KEYS.callbacks, string.format('%.0f', now_ms() + ARGV.look_ms), ARGV.task_id)
if ARGV.now == '1' and redis.call('EXISTS', KEYS.bell) == 0 then redis.call('LPUSH', KEYS.bell, 1) end
return 1
