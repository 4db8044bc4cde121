-- Strike a worker from the register, unless it still holds a lease or has beaten again.
--
-- KEYS  workers: zset; leases: of the worker (set); about: what it said of itself
-- ARGV  worker_id; silent_ms: the lease TTL, 0 when it leaves by itself
-- Returns 1 if it was there and is not any more; of several that strike the same one, the first is told so.
if redis.call('EXISTS', KEYS.leases) == 1 then return 0 end
local beat = redis.call('ZSCORE', KEYS.workers, ARGV.worker_id)
if beat and tonumber(beat) > now_ms() - tonumber(ARGV.silent_ms) and ARGV.silent_ms ~= '0' then return 0 end
redis.call('DEL', KEYS.about)
return redis.call('ZREM', KEYS.workers, ARGV.worker_id)
