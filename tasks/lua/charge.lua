-- Count a request that was refused for its content against its key's rate.
--
-- KEYS  quota: its state (string)
-- ARGV  interval_us; burst
-- Returns 0 when it is counted, else the µs until the key may send again; then nothing is written. Run twice it counts
-- twice, so its caller does not repeat it.
local now, tat = now_us(), tonumber(redis.call('GET', KEYS.quota) or 0)
local due, early = gcra_take(tat, now, tonumber(ARGV.interval_us), tonumber(ARGV.burst))
if not due then return math.ceil(early) end
redis.call('SET', KEYS.quota, string.format('%.0f', due), 'PX', math.max(1, math.ceil((due - now) / 1000)))
return 0
