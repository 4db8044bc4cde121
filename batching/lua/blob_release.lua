-- Delete blobs that nobody needs any more; a repeated call finds nothing.
--
-- KEYS  blobs: zset; sizes: hash; kept: zset; bytes: hash (see blobs.lua); then the blobs (strings)
-- ARGV  the ids, in the same order
-- Returns how many there were.
local gone = 0
for i = 1, #ARGV do
  forget(ARGV[i])
  gone = gone + redis.call('UNLINK', KEYS[KEYS.width + i])
end
return gone
