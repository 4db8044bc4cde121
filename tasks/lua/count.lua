-- Add one process's increments to the shared sums.
--
-- KEYS  sums: hash; flush: number of the last flush of this process (string); second: answers in this second (string)
-- ARGV  flush: number of this flush, from 1; answered: requests answered in it; then per Increment: field, amount
-- Returns 1, or 0 if this flush was added before: its reply was lost, and it was sent again.
if tonumber(redis.call('GET', KEYS.flush) or '0') >= tonumber(ARGV.flush) then return 0 end
for i = ARGV.width, #ARGV - 1, Increment.width do
  redis.call('HINCRBYFLOAT', KEYS.sums, ARGV[i + Increment.field], ARGV[i + Increment.amount])
end
redis.call('SET', KEYS.flush, ARGV.flush, 'EX', 3600)
if ARGV.answered ~= '0' then
  redis.call('INCRBYFLOAT', KEYS.second, ARGV.answered)
  redis.call('EXPIRE', KEYS.second, 60)
end
return 1
