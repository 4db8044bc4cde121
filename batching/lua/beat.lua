-- Note a worker's heartbeat; whoever beats also learns whose beats have stopped.
--
-- KEYS  workers: zset; about: what this worker says of itself (string); then the paces (hash) of the models that it
--       runs
-- ARGV  worker_id; about: JSON, '' to leave it; lease_ttl_ms; then its pace with each (tasks/lua/capacity.lua reads it)
-- Returns {time since this worker's own last beat in ms, or -1; ids of workers that have not beaten for the lease TTL}.
local now = now_ms()
local last = redis.call('ZSCORE', KEYS.workers, ARGV.worker_id)
redis.call('ZADD', KEYS.workers, now, ARGV.worker_id)
if ARGV.about ~= '' then redis.call('SET', KEYS.about, ARGV.about, 'PX', 3 * ARGV.lease_ttl_ms) end
for i = KEYS.width + 1, #KEYS do
  redis.call('HSET', KEYS[i], ARGV.worker_id, string.format('%.0f;', now) .. ARGV[ARGV.width - KEYS.width + i])
  redis.call('EXPIRE', KEYS[i], 3600)
end
-- Redis' clock has gone back: whoever seems to have beaten in the future is taken to have beaten now.
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS.workers, '(' .. string.format('%.0f', now), '+inf')) do
  redis.call('ZADD', KEYS.workers, now, each)
end
local overdue = redis.call('ZRANGEBYSCORE', KEYS.workers, '-inf', '(' .. string.format('%.0f', now - ARGV.lease_ttl_ms))
return {last and now - tonumber(last) or -1, overdue}
