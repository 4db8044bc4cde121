-- Append to a log of batches, and drop its oldest entries when they are too old or the log is too large.
--
-- KEYS  record: stream; size: hash: bytes; cut, the time in ms of the newest entry dropped for want of room
-- ARGV  age_ms: entries older than this are dropped; max_bytes: the size limit; then the rows, compressed
-- Returns nothing of use. A repeat adds the rows again, which readers tolerate.
local now, most = now_ms(), tonumber(ARGV.max_bytes)
-- The size of an entry apart from its rows: its id, the field's name, the lengths.
local EACH = 64
local size = tonumber(redis.call('HGET', KEYS.size, 'bytes') or 0)
for i = ARGV.width + 1, #ARGV do
  redis.call('XADD', KEYS.record, '*', 'rows', ARGV[i])
  size = size + #ARGV[i] + EACH
end
-- In the long run each call drops no more than it adds, so a few entries are enough.
for _ = 1, 2 * #ARGV + 20 do
  local oldest = redis.call('XRANGE', KEYS.record, '-', '+', 'COUNT', 1)[1]
  if not oldest then
    size = 0
    break
  end
  local at = tonumber(string.match(oldest[1], '^%d+'))
  if size > most then
    redis.call('HSET', KEYS.size, 'cut', string.format('%.0f', at))
  elseif at > now - ARGV.age_ms then
    break
  end
  redis.call('XDEL', KEYS.record, oldest[1])
  size = size - #oldest[2][2] - EACH
end
redis.call('HSET', KEYS.size, 'bytes', string.format('%.0f', size))
redis.call('PEXPIRE', KEYS.record, ARGV.age_ms)
redis.call('PEXPIRE', KEYS.size, ARGV.age_ms)
return size
