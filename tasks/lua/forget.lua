-- Remove entries from the ledger's stream, once they are in the database.
--
-- KEYS  ledger: stream; rows: in it (string)
-- ARGV  per EntryRow: entry_id, rows
-- Two processes that wrote the same entry may both call this: only one of them decreases the count of rows.
for i = 0, #ARGV - 1, EntryRow.width do
  if redis.call('XDEL', KEYS.ledger, ARGV[i + EntryRow.entry_id]) == 1 then
    redis.call('DECRBY', KEYS.rows, ARGV[i + EntryRow.rows])
  end
end
if redis.call('XLEN', KEYS.ledger) == 0 then redis.call('DEL', KEYS.ledger, KEYS.rows) end
