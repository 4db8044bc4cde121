-- A lease: first worker, model and marks, a line each; then the messages, the last claimed first. The marks are two
-- characters for each message, in the order of the claim: its tier's rank, and the verdict. So the message at position
-- n of a batch, counted from 1, is element -n of the list. While the lease lasts, the place of what has been settled
-- holds a NUL, which no JSON text is: a repeat of the call finds it so.
local SETTLED = '\0'

-- A worker of an earlier version may have left a lease whose header has two lines: there each message stood behind its
-- own marks, the first claimed first, and a settled place was empty.
local function in_this_form(lease)
  if string.find(lease[1], '\n.*\n') then return lease end
  local marks, read = {}, {}
  for i = 2, #lease do
    local entry = lease[#lease + 2 - i]
    marks[#lease + 1 - i] = string.sub(entry .. '0-', 1, 2)
    read[i] = entry == '' and SETTLED or string.sub(entry, 3)
  end
  read[1] = lease[1] .. '\n' .. table.concat(marks)
  return read
end

local function marks_of(header)
  return string.match(header, '[^\n]*$')
end

local function rank_at(marks, position)
  return string.byte(marks, 2 * position - 1) - 48
end
