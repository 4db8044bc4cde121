-- A worker's heartbeat; whoever beats also learns whose beats have stopped.
--
-- KEYS  1 workers (zset)  2 what this worker says of itself (string)  3… paces (hash) of the models that it runs
-- ARGV  1 worker id  2 JSON, '' to leave it  3 lease TTL in ms  4… its pace with each (tasks/lua/capacity.lua reads it)
-- Returns {time since this worker's own last beat in ms, or -1; ids of workers that have not beaten for the lease TTL}.
local now = now_ms()
local last = redis.call('ZSCORE', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
if ARGV[2] ~= '' then redis.call('SET', KEYS[2], ARGV[2], 'PX', 3 * ARGV[3]) end
for i = 3, #KEYS do
  redis.call('HSET', KEYS[i], ARGV[1], string.format('%.0f;', now) .. ARGV[i + 1])
  redis.call('EXPIRE', KEYS[i], 3600)
end
-- Redis' clock has gone back: whoever seems to have beaten in the future is taken to have beaten now.
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf')) do
  redis.call('ZADD', KEYS[1], now, each)
end
local overdue = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now - ARGV[3]))
return {last and now - tonumber(last) or -1, overdue}
