-- Count a request that was refused for what is in it against its key's rate.
--
-- KEYS  1 the quota's state (string)   ARGV  1 interval, µs  2 burst
-- Returns 0 when it is counted, else the µs until the key may ask again: then nothing is written. Run twice it counts
-- twice, so its caller does not repeat it.
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local due, early = gcra_take(tonumber(redis.call('GET', KEYS.quota) or 0), now_us, tonumber(ARGV.interval_us), tonumber(ARGV.burst))
if not due then return math.ceil(early) end
redis.call('SET', KEYS.quota, string.format('%.0f', due), 'PX', math.max(1, math.ceil((due - now_us) / 1000)))
return 0
