-- Take callbacks that are due; whoever takes one has it until its lease ends.
--
-- KEYS  callbacks: zset
-- ARGV  lease_ms; most: how many to take; then the ids whose leases are renewed
-- Returns the time in ms and that of the next look at any ('' if there is none), then the ids taken. Nobody else gets
-- them before the lease ends, so a call whose answer is lost delays them by that time.
local now = now_ms()
local until_ms = string.format('%.0f', now + ARGV.lease_ms)
for i = ARGV.width + 1, #ARGV do redis.call('ZADD', KEYS.callbacks, 'XX', until_ms, ARGV[i]) end
local taken = {string.format('%.0f', now), ''}
if ARGV.most ~= '0' then
  local due = redis.call('ZRANGEBYSCORE', KEYS.callbacks, '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV.most)
  for i = 1, #due do
    redis.call('ZADD', KEYS.callbacks, until_ms, due[i])
    taken[i + 2] = due[i]
  end
end
local next_one = redis.call('ZRANGE', KEYS.callbacks, 0, 0, 'WITHSCORES')
if next_one[2] then taken[2] = next_one[2] end
return taken
