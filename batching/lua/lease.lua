-- A lease: first worker, model and marks, a line each; then the messages, the last claimed first. The marks are two
-- characters for each message, in the order of the claim: its tier's rank, and the verdict. So the message at position
-- n of a batch, counted from 1, is element -n of the list. While the lease lasts, the place of what has been settled
-- holds a NUL, which no JSON text is: a repeat of the call finds it so.
local SETTLED = '\0'

local function marks_of(header)
  return string.match(header, '[^\n]*$')
end

local function rank_at(marks, position)
  return string.byte(marks, 2 * position - 1) - 48
end
