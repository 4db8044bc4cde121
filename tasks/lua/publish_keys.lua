-- Replace the table of API keys by the current one of the database.
--
-- KEYS  table: hash; version: string
-- ARGV  version: <database>:<number>; then per key: id, record (JSON)
-- Returns 1, or 0 if Redis has this version or a later one. Two processes may publish at once, and the older table must
-- not win: a revoked key would be valid again.
local function parts(version)
  return string.match(version, '^(.*):(%d+)$')
end
local database, number = parts(ARGV.version)
local there = redis.call('GET', KEYS.version)
if there then
  local other, reached = parts(there)
  if other == database and tonumber(reached) >= tonumber(number) then return 0 end
end
redis.call('DEL', KEYS.table)
for i = ARGV.width + 1, #ARGV, 1000 do
  redis.call('HSET', KEYS.table, unpack(ARGV, i, math.min(i + 999, #ARGV)))
end
redis.call('SET', KEYS.version, ARGV.version)
return 1
