-- The number of blobs and their bytes; what has expired is forgotten first.
--
-- KEYS  blobs: zset; sizes: hash; kept: zset; bytes: hash (see blobs.lua)
-- Returns the number, their bytes, and the bytes of those of dead letters.
sweep(now_ms())
return {redis.call('ZCARD', KEYS.blobs), bytes_of('all'), bytes_of('kept')}
