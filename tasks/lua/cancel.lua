-- Take back a request that has not started.
--
-- KEYS  1 result  2 cancelled (zset)   ARGV  1 task id
-- Returns the state it found: 'PENDING' (cancelled now), '' (never issued, or expired), or the state that stands.
local state = redis.call('GET', KEYS[1])
if not state then return '' end
local status = string.match(state, '^{"status":%s*"(%u+)"')
if status ~= 'PENDING' then return status or '' end
local now = now_ms()
local left = redis.call('PTTL', KEYS[1])
redis.call('SET', KEYS[1], state_of(ARGV[1], 'REVOKED'), 'KEEPTTL')
redis.call('ZADD', KEYS[2], now + math.max(left, 0), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('PUBLISH', KEYS[1], state_of(ARGV[1], 'REVOKED'))
return 'PENDING'
