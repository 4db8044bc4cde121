-- How many places of a batch each tier gets: batching/policy/tiers.py is the same rule, and tests hold the two
-- together.
-- Returns the places, and the credits to keep.
local function allocate(depths, size, credits, shares)
  local takes, saved, left, top, waiting = {}, {}, size, 0, 0
  for i = 1, #depths do
    takes[i], saved[i] = 0, 0
    waiting = waiting + depths[i]
    if top == 0 and depths[i] > 0 then top = i end
  end
  if waiting <= size then return depths, credits end
  for i = 1, #depths do
    if i > top and depths[i] > 0 then
      local credit = math.min(credits[i] + shares[i] * size, size + 1)
      takes[i] = math.min(math.floor(credit + 1e-9), depths[i], left)
      left = left - takes[i]
      saved[i] = credit - takes[i]
    end
  end
  for i = 1, #depths do
    local more = math.min(left, depths[i] - takes[i])
    takes[i] = takes[i] + more
    left = left - more
  end
  return takes, saved
end

-- The places of each tier that were given, as 'n,n,n'; what a tier cannot fill goes to the highest that can.
local function as_given(given, depths, size)
  local takes, left = {}, size
  for places in string.gmatch(given, '%d+') do
    local i = #takes + 1
    takes[i] = math.min(tonumber(places), depths[i], left)
    left = left - takes[i]
  end
  for i = 1, #depths do
    local more = math.min(left, depths[i] - takes[i])
    takes[i], left = takes[i] + more, left - more
  end
  return takes
end
