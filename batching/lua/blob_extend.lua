-- Let a blob live until another time: that of a dead letter, or of one that is queued again.
--
-- KEYS  blobs: zset; sizes: hash; kept: zset; bytes: hash (see blobs.lua); blob: string
-- ARGV  id; ttl_ms; keep: '1' for a dead letter's, else '0'; max_kept_bytes: of dead letters
-- Returns -1 if there is none any more; else the ids of dead letters' blobs, the oldest, that are to be released for
-- the room of this one; it may be among them.
local now = now_ms()
sweep(now)
local ends = string.format('%.0f', now + ARGV.ttl_ms)
if redis.call('PEXPIREAT', KEYS.blob, ends) == 0 then
  forget(ARGV.id)
  return -1
end
local size = redis.call('HGET', KEYS.sizes, ARGV.id)
if not size then
  -- A plain Celery client has written it.
  size = redis.call('STRLEN', KEYS.blob)
  redis.call('HSET', KEYS.sizes, ARGV.id, size)
  redis.call('HINCRBY', KEYS.bytes, 'all', size)
end
redis.call('ZADD', KEYS.blobs, ends, ARGV.id)
if ARGV.keep == '0' then
  if redis.call('ZREM', KEYS.kept, ARGV.id) == 1 then redis.call('HINCRBY', KEYS.bytes, 'kept', -size) end
  return {}
end
if redis.call('ZADD', KEYS.kept, now, ARGV.id) == 1 then redis.call('HINCRBY', KEYS.bytes, 'kept', size) end
local surplus, over, at = {}, bytes_of('kept') - ARGV.max_kept_bytes, 0
while over > 0 do
  local oldest = redis.call('ZRANGE', KEYS.kept, at, at)[1]
  if not oldest then break end
  surplus[#surplus + 1] = oldest
  over, at = over - redis.call('HGET', KEYS.sizes, oldest), at + 1
end
return surplus
