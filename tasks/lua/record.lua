-- Add rows to the ledger's stream, if there is room.
--
-- KEYS  1 ledger (stream)  2 rows in it (string)   ARGV  1 most rows  2 rows now  3 the rows (JSON)
-- Returns 1, or 0 when they would be too many. The new are refused, not the old trimmed: whoever is refused can count them.
local rows = tonumber(redis.call('GET', KEYS[2]) or '0')
if rows + ARGV[2] > tonumber(ARGV[1]) then return 0 end
redis.call('XADD', KEYS[1], '*', 'rows', ARGV[3])
redis.call('INCRBY', KEYS[2], ARGV[2])
return 1
