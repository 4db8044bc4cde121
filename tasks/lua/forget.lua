-- Take entries out of the ledger's stream, once they are in the database.
--
-- KEYS  1 ledger (stream)  2 rows in it (string)   ARGV  per entry: its id, its rows
-- Two who have written the same entry may both say so: only one of them counts its rows down.
for i = 1, #ARGV, 2 do
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then redis.call('DECRBY', KEYS[2], ARGV[i + 1]) end
end
if redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[1], KEYS[2]) end
