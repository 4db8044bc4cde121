-- In front of every script: the layout of the fast header (batching/fast_header.py) and the clock.
local HEAD = '{"headers":{"bunch":"1;'
local DEADLINE = #HEAD + 1
local LIMIT = DEADLINE + 14
local ENQUEUED = LIMIT + 14
local ATTEMPT = ENQUEUED + 14
local LOST = ATTEMPT + 3
local TRACKED = LOST + 2
local TTL = TRACKED + 2
local KEY = TTL + 10
local ID = KEY + 9
local NO_KEY = '00000000'

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function now_ms()
  return math.floor(now_us() / 1000)
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
  return '{"status":"' .. status .. '","result":null,"traceback":null,"children":[],"date_done":null,"task_id":"' .. id
    .. '"}'
end
