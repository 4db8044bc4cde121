-- Add one process's increments to the shared sums.
--
-- KEYS  1 sums (hash)  2 number of the last flush of this process (string)  3 answered in this second (string)
-- ARGV  1 number of this flush, from 1  2 requests answered in it  then pairs: field, increment
-- Returns 1, or 0 when this flush has been added before: its reply was lost, and it was sent again.
if tonumber(redis.call('GET', KEYS[2]) or '0') >= tonumber(ARGV[1]) then return 0 end
for i = 3, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[2], ARGV[1], 'EX', 3600)
if ARGV[2] ~= '0' then
  redis.call('INCRBYFLOAT', KEYS[3], ARGV[2])
  redis.call('EXPIRE', KEYS[3], 60)
end
return 1
