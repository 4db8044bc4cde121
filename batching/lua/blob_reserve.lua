-- Make room for a blob before it is written; a repeated call changes nothing.
--
-- KEYS  blobs: zset; sizes: hash; kept: zset; bytes: hash (see blobs.lua)
-- ARGV  id; size; ttl_ms; max_bytes: of all blobs (0: no limit); max_memory: the fraction of Redis' memory that may be
--       used
-- Returns the Redis time in ms at which it is to expire; or 0: the blobs have all the room that they may have; or -1:
-- Redis' memory is nearly full.
local now = now_ms()
sweep(now)
local before = redis.call('HGET', KEYS.sizes, ARGV.id) or 0
local most = tonumber(ARGV.max_bytes)
if most > 0 and bytes_of('all') - before + ARGV.size > most then return 0 end
local info = redis.pcall('INFO', 'memory')
if type(info) == 'string' then
  local used, limit = string.match(info, '\nused_memory:(%d+)'), string.match(info, '\nmaxmemory:(%d+)')
  if used and limit and tonumber(limit) > 0 and used + ARGV.size > ARGV.max_memory * limit then return -1 end
end
forget(ARGV.id)
local ends = string.format('%.0f', now + ARGV.ttl_ms)
redis.call('ZADD', KEYS.blobs, ends, ARGV.id)
redis.call('HSET', KEYS.sizes, ARGV.id, ARGV.size)
redis.call('HINCRBY', KEYS.bytes, 'all', ARGV.size)
return tonumber(ends)
