-- Add to a record of requests, and drop what is too old or too much of it: the oldest first.
--
-- KEYS  record: stream; size: hash: bytes; cut, the time in ms of the newest entry dropped for want of room
-- ARGV  age_ms: beyond which nothing is kept; max_bytes: that may be kept; then the rows, compressed
-- Returns nothing of use. A repeat adds the rows once more, which a reader does not notice.
local now, most = now_ms(), tonumber(ARGV.max_bytes)
-- An entry's own share of the stream: its id, the field's name, the lengths.
local EACH = 64
local size = tonumber(redis.call('HGET', KEYS.size, 'bytes') or 0)
for i = ARGV.width + 1, #ARGV do
  redis.call('XADD', KEYS.record, '*', 'rows', ARGV[i])
  size = size + #ARGV[i] + EACH
end
-- Each call drops more than it adds, in the long run: a few entries are all that there is to do.
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
