-- Count requests of one of an owner's clients against its limit. Not to be repeated: it counts each time.
--
-- KEYS  quota: its state (string)
-- ARGV  interval_us: between two requests; burst; requests: how many it wants now
-- Returns 1 if it may, else 0; after how many µs it may; how many are left; µs until the burst is whole again.
local now, interval, burst = now_us(), tonumber(ARGV.interval_us), tonumber(ARGV.burst)
local tat = tonumber(redis.call('GET', KEYS.quota) or 0)
local due, early = gcra_take(tat, now, interval, burst, tonumber(ARGV.requests))
if due then
  tat = due
  redis.call('SET', KEYS.quota, string.format('%.0f', tat), 'PX', math.max(1, math.ceil((tat - now) / 1000)))
end
return {due and 1 or 0, math.ceil(early), gcra_remaining(tat, now, interval, burst), math.ceil(math.max(0, tat - now))}
