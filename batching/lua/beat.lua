-- A worker's heartbeat; whoever beats also learns whose beats have stopped.
--
-- KEYS  1 workers (zset)  2 what this worker says of itself (string)
-- ARGV  1 worker id  2 JSON, '' to leave it  3 lease TTL in ms
-- Returns the ids of workers that have not beaten for the lease TTL.
local now = now_ms()
redis.call('ZADD', KEYS[1], now, ARGV[1])
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2], 'PX', 3 * ARGV[3]) end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now - ARGV[3]))
