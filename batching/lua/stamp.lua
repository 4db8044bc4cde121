-- Prepended to every script: the stamp's layout (batching/stamp.py) and the clock.
local HEAD = '{"headers":{"bunch":"1;'
local DEADLINE = #HEAD + 1
local LIMIT = DEADLINE + 14
local ENQUEUED = LIMIT + 14
local ATTEMPT = ENQUEUED + 14
local TRACKED = ATTEMPT + 3
local TTL = TRACKED + 2
local ID = TTL + 10

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function stamped(message)
  return string.sub(message, 1, #HEAD) == HEAD
end

local function field(message, at, width)
  return tonumber(string.sub(message, at, at + width - 1))
end

local function tracked(message)
  return string.byte(message, TRACKED) == 49
end

local function task_id(message)
  return string.sub(message, ID, string.find(message, '"', ID, true) - 1)
end

local function state_of(id, status)
  return '{"status":"' .. status .. '","result":null,"traceback":null,"children":[],"date_done":null,"task_id":"' .. id .. '"}'
end
