-- Add rows to the ledger's stream, if there is room.
--
-- KEYS  ledger: stream; rows: in it (string)
-- ARGV  max_rows; added: rows now; rows: themselves (JSON)
-- Returns 1, or 0 if they would be too many. New rows are refused instead of old ones trimmed, so that the sender can
-- count them.
local rows = tonumber(redis.call('GET', KEYS.rows) or '0')
if rows + ARGV.added > tonumber(ARGV.max_rows) then return 0 end
redis.call('XADD', KEYS.ledger, '*', 'rows', ARGV.rows)
redis.call('INCRBY', KEYS.rows, ARGV.added)
return 1
