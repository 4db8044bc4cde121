-- The mark of a question: who asks it now, for all. <rank, from 0><'1' if others wait with it><deadline><enqueued><task id>
local MARK_DEADLINE, MARK_ENQUEUED, MARK_ID = 3, 16, 29

local function mark_of(rank, joined, deadline, enqueued, id)
  return string.format('%d%d%013.0f%013.0f%s', rank, joined and 1 or 0, deadline, enqueued, id)
end

local function is_joined(mark)
  return string.byte(mark, 2) == 49
end
