-- Messages as they lie in a queue: with our stamp, or anybody else's.

-- The whole stamp, not its beginning alone: of a message that only looks like ours every script would fail half-way, at
-- each claim anew, and nothing behind it would ever be served.
local D9 = string.rep('%d', 9)
local D13 = string.rep('%d', 13)
local X8 = string.rep('%x', 8)
local STAMP = '^' .. HEAD .. D13 .. ';' .. D13 .. ';' .. D13 .. ';%d%d;%d;[01];' .. D9 .. ';' .. X8 .. ';[^"]+"'

-- Neighbours came with the same flush, and their stamps are alike up to the id: what was found good is not looked at
-- again.
local good
local function stamped(message)
  local head = string.sub(message, 1, ID - 1)
  if head == good then
    local quote = string.find(message, '"', ID, true)
    return quote ~= nil and quote > ID
  end
  if not string.find(message, STAMP) then return false end
  good = head
  return true
end

-- Only to tell callers apart, so the whole stamp need not be looked at.
local function key_of(message)
  return string.sub(message, 1, #HEAD) == HEAD and string.sub(message, KEY, KEY + 7) or NO_KEY
end

-- Deliveries that reached an executor and did not come back. Anybody else's message counts in a header of its own,
-- spliced in without a JSON round trip (cjson turns [] into {}); inside a JSON string the quotes would be escaped, so
-- the first match is the real key.
local COUNTED = '"headers": {"bunch_attempt": '
local HEADERS = {'"headers": {', '"headers":{'}
local function attempts(message)
  if stamped(message) then return field(message, ATTEMPT, 2) end
  local _, to = string.find(message, COUNTED, 1, true)
  if not to then return 0 end
  return tonumber(string.match(message, '^%d%d?', to + 1)) or 0
end

-- How many of those attempts ended with the executor's death. Anybody else's message has one count for both.
local function losses(message)
  if stamped(message) then return string.byte(message, LOST) - 48 end
  return attempts(message)
end

-- One attempt more; `lost`: its executor died, which counts as `least` losses at least, and always as one.
local function with_attempt(message, lost, least)
  if stamped(message) then
    -- It has waited its turn once: from here on only its deadline counts, not the queue's age limit.
    return string.sub(message, 1, LIMIT - 1) .. string.sub(message, DEADLINE, DEADLINE + 12)
      .. string.sub(message, LIMIT + 13, ATTEMPT - 1)
      .. string.format('%02d;%d', math.min(attempts(message) + 1, 99),
        math.min(lost and math.max(losses(message) + 1, least) or losses(message), 9))
      .. string.sub(message, LOST + 1)
  end
  local from, to = string.find(message, COUNTED, 1, true)
  if from then
    local digits = string.match(message, '^%d%d?', to + 1) or ''
    return string.sub(message, 1, to) .. math.min(math.max(attempts(message) + 1, lost and least or 0), 99)
      .. string.sub(message, to + 1 + #digits)
  end
  for i = 1, #HEADERS do
    from, to = string.find(message, HEADERS[i], 1, true)
    if from then
      -- Protocol 1 has no headers.
      local comma = string.find(message, '^%s*}', to + 1) and '' or ', '
      return string.sub(message, 1, from - 1) .. COUNTED .. math.max(1, lost and least or 0) .. comma
        .. string.sub(message, to + 1)
    end
  end
  -- None at all, null, or spelled otherwise: in front of everything, so that a later one holds for whoever reads JSON.
  return (string.gsub(message, '^%s*{', '{' .. COUNTED .. math.max(1, lost and least or 0) .. '}, ', 1))
end
