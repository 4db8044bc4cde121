-- The account of blobs: which there are, until when, and their bytes. A blob is a string of its own that expires by
-- itself at the time that stands here, so what is forgotten here takes no room.
--
-- KEYS.blobs: id → Redis time in ms at which it expires (zset); KEYS.sizes: id → bytes (hash); KEYS.kept: id → time of
-- those of dead letters (zset); KEYS.bytes: `all` and `kept` (hash)
local MOST_SWEPT = 200

local function forget(id)
  local size = redis.call('HGET', KEYS.sizes, id)
  if not size then return end
  redis.call('HDEL', KEYS.sizes, id)
  redis.call('ZREM', KEYS.blobs, id)
  redis.call('HINCRBY', KEYS.bytes, 'all', -size)
  if redis.call('ZREM', KEYS.kept, id) == 1 then redis.call('HINCRBY', KEYS.bytes, 'kept', -size) end
end

-- Forget those that have expired.
local function sweep(now)
  local gone = redis.call('ZRANGEBYSCORE', KEYS.blobs, '-inf', string.format('%.0f', now), 'LIMIT', 0, MOST_SWEPT)
  for i = 1, #gone do forget(gone[i]) end
end

local function bytes_of(which)
  return tonumber(redis.call('HGET', KEYS.bytes, which) or 0)
end
