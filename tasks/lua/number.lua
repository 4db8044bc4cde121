-- Give an owner its number among the owners of a model: 0, 1, 2 … in the order in which they come.
--
-- KEYS  owners: numbers by owner (hash)
-- ARGV  owner; most: no more than this many owners get one; keep_ms: how long the numbers are kept unused
-- Returns the number, or -1 if there are `most` already. Run twice it returns the same.
local known = redis.call('HGET', KEYS.owners, ARGV.owner)
if known then return tonumber(known) end
local number = redis.call('HLEN', KEYS.owners)
if number >= tonumber(ARGV.most) then return -1 end
redis.call('HSET', KEYS.owners, ARGV.owner, number)
redis.call('PEXPIRE', KEYS.owners, ARGV.keep_ms)
return number
