-- Take back a request that has not started, and tell whoever waits for it.
--
-- KEYS  1 result  2 cancelled (zset)
-- ARGV  1 task id  2 channel of all frontends  3 how long to remember one that has no state, in ms; 0: leave it alone
-- Returns the state it found: 'PENDING' (cancelled now), '' (no state: never issued, expired, or nobody can ask for it),
-- or the state that stands.
local state = redis.call('GET', KEYS[1])
local status = state and string.match(state, '^{"status":%s*"(%u+)"') or ''
if status ~= 'PENDING' and (state or ARGV[3] == '0') then return status end
local now = now_ms()
local left = ARGV[3]
local revoked = state_of(ARGV[1], 'REVOKED')
if state then
  left = math.max(redis.call('PTTL', KEYS[1]), 0)
  redis.call('SET', KEYS[1], revoked, 'KEEPTTL')
  redis.call('PUBLISH', KEYS[1], revoked)
end
redis.call('ZADD', KEYS[2], now + left, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('PUBLISH', ARGV[2], '[' .. revoked .. ']')
return status
