-- Take back a request that has not started, and tell whoever waits for it.
--
-- KEYS  result; cancelled: zset
-- ARGV  task_id; channel: of all frontends; stateless_ms: how long to remember one that has no state; 0: leave it alone
-- Returns the state it found: 'PENDING' (cancelled now), '' (no state: never issued, expired, or nobody can ask for
-- it), or the state that stands.
local state = redis.call('GET', KEYS.result)
local status = state and string.match(state, '^{"status":%s*"(%u+)"') or ''
if status ~= 'PENDING' and (state or ARGV.stateless_ms == '0') then return status end
local now = now_ms()
local left = ARGV.stateless_ms
local revoked = state_of(ARGV.task_id, 'REVOKED')
if state then
  left = math.max(redis.call('PTTL', KEYS.result), 0)
  redis.call('SET', KEYS.result, revoked, 'KEEPTTL')
  redis.call('PUBLISH', KEYS.result, revoked)
end
redis.call('ZADD', KEYS.cancelled, now + left, ARGV.task_id)
redis.call('ZREMRANGEBYSCORE', KEYS.cancelled, '-inf', now)
redis.call('PUBLISH', ARGV.channel, '[' .. revoked .. ']')
return status
