-- Which of these requests the server still has: queued, in a pause, leased, waiting for an equal one, or finished. It
-- reads every queue of their models, so it is for the moment after a failover.
--
-- KEYS  workers: zset; leases, lease: names without what they are of; joined: prefix of names
--       then the queues of the requests' models, then for each model its delayed (zset)
-- ARGV  queues: how many there are; then per request: its id, and its question ('' if it is not shared)
-- Returns a character per request: '1' it is there, '0' it is lost.
local FINISHED = {SUCCESS = true, FAILURE = true, REVOKED = true}
local asked, there = {}, {}
for i = ARGV.width + 1, #ARGV, 2 do asked[ARGV[i]] = true end

local function note(message)
  if string.sub(message, 1, #HEAD) ~= HEAD then return end
  local quote = string.find(message, '"', ID, true)
  local id = quote and string.sub(message, ID, quote - 1)
  if id and asked[id] then there[id] = true end
end

local function scan(list, first)
  for from = first, redis.call('LLEN', list) - 1, 256 do
    for _, message in ipairs(redis.call('LRANGE', list, from, from + 255)) do note(message) end
  end
end

-- The whole name; what it is of stands before the shard's tag.
local function named(name, of)
  return string.sub(name, 1, #name - #TAG) .. of .. TAG
end

local delayed = KEYS.width + ARGV.queues
for i = KEYS.width + 1, delayed do scan(KEYS[i], 0) end
for i = delayed + 1, #KEYS do
  for _, entry in ipairs(redis.call('ZRANGE', KEYS[i], 0, -1)) do note(string.sub(entry, 2)) end
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS.workers, 0, -1)) do
  for _, batch in ipairs(redis.call('SMEMBERS', named(KEYS.leases, worker))) do scan(named(KEYS.lease, batch), 1) end
end

local found = {}
for i = ARGV.width + 1, #ARGV, 2 do
  local id, question = ARGV[i], ARGV[i + 1]
  local known = there[id] or (question ~= '' and redis.call('HEXISTS', KEYS.joined .. ':' .. question, id) == 1)
  if not known then
    local state = redis.call('GETRANGE', result_key(id), 0, 31)
    known = FINISHED[string.match(state, '^{"status":%s*"(%u+)"') or '']
  end
  found[#found + 1] = known and '1' or '0'
end
return table.concat(found)
