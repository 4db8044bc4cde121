-- Outcomes for callers who wait in frontend processes: gathered, then one message to each channel, and stored.
--
-- Above this a reply carries the id alone and the frontend reads the stored key: a large value must not sit in the
-- output buffer of a subscriber that is slow (`client-output-buffer-limit pubsub`).
local MAX_INLINE = 65536

local replies = {}

local function replies_of(channel)
  local to = replies[channel]
  if not to then
    to = {}
    replies[channel] = to
  end
  return to
end

local function as_reply(id, result)
  return #result <= MAX_INLINE and result or ('{"task_id":"' .. id .. '","status":"STORED"}')
end

local function reply(channel, id, result)
  local to = replies_of(channel)
  to[#to + 1] = as_reply(id, result)
end

-- An answer that its frontend has heard is read from its key only if the connection breaks in that very moment, or by a
-- caller who asks once more. So it need not be kept for long: at thousands a second that would be most of what Redis
-- holds.
local HEARD_MS = 10000

-- What is to be stored, by the channel of a frontend that alone waits for it, if any, and by TTL: key, value, key, …
local results = {}

local function results_of(channel, ttl)
  local by_ttl = results[channel or '']
  if not by_ttl then
    by_ttl = {}
    results[channel or ''] = by_ttl
  end
  local words = by_ttl[ttl]
  if not words then
    words = {}
    by_ttl[ttl] = words
  end
  return words
end

local function store(key, result, ttl, channel)
  local words = results_of(channel, ttl)
  local n = #words
  words[n + 1], words[n + 2] = key, result
end

-- Lua's stack holds so many arguments, and some more.
local MOST_WORDS = 2000

-- Keys and values of one TTL. One command for all is less than two thirds of the work, but only Valkey 9.1 and Redis
-- 8.4 have it; whatever keeps it from being run, SET says it better.
local function set_all(words, first, last, ttl)
  local count = (last - first + 1) / 2
  if count > 1 then
    local command = {'MSETEX', count, unpack(words, first, last)}
    command[#command + 1], command[#command + 2] = 'PX', ttl
    if type(redis.pcall(unpack(command))) ~= 'table' then return end
  end
  for i = first, last, 2 do redis.call('SET', words[i], words[i + 1], 'PX', ttl) end
end

local function send_replies()
  local heard = {}
  for channel, to in pairs(replies) do
    heard[channel] = publish(channel, '[' .. table.concat(to, ',') .. ']') > 0
  end
  for channel, by_ttl in pairs(results) do
    for ttl, words in pairs(by_ttl) do
      if heard[channel] and tonumber(ttl) > HEARD_MS then ttl = HEARD_MS end
      for first = 1, #words, MOST_WORDS do set_all(words, first, math.min(first + MOST_WORDS - 1, #words), ttl) end
    end
  end
end
