-- Cancel a request that has not started, and tell its caller.
--
-- KEYS  result; cancelled: zset
-- ARGV  task_id; channel: of all frontends; stateless_ms: how long to remember one without a state; 0: do not cancel it
-- Returns the state that it found: 'PENDING' (cancelled now), '' (no state: never issued, expired, or its caller does
-- not poll), or another state, which stays.
local state = redis.call('GET', KEYS.result)
local status = state and string.match(state, '^{"status":%s*"(%u+)"') or ''
if status ~= 'PENDING' and (state or ARGV.stateless_ms == '0') then return status end
local now = now_ms()
local left = ARGV.stateless_ms
local revoked = state_of(ARGV.task_id, 'REVOKED')
if state then
  left = math.max(redis.call('PTTL', KEYS.result), 0)
  redis.call('SET', KEYS.result, revoked, 'KEEPTTL')
  publish(KEYS.result, revoked)
end
redis.call('ZADD', KEYS.cancelled, now + left, ARGV.task_id)
redis.call('ZREMRANGEBYSCORE', KEYS.cancelled, '-inf', now)
publish(ARGV.channel, '[' .. revoked .. ']')
return status
