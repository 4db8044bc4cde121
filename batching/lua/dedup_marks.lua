-- What submit and finish know of a question in common: who asks it, and how a result is made another request's.
--
-- The mark says who asks it now, for all: <rank, from 0><'1' if others wait with it><deadline><enqueued><task id>
local MARK_DEADLINE = 3
local MARK_ENQUEUED = 16
local MARK_ID = 29

local function is_joined(mark)
  return string.byte(mark, 2) == 49
end

-- How many bytes of a result stand before its task id. Behind that there are a few names and numbers; the output, which
-- may hold anything, is before it.
local LONGEST_END = 2048

local function bytes_before_id(result)
  local tail = string.sub(result, -LONGEST_END)
  local at = string.match(tail, '^.*,"task_id":()"')
  return at and #result - #tail + at - 1
end
