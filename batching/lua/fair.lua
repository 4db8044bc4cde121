-- Round robin over keys: batching/policy/fair.py is the same rule, and tests hold the two together.
-- Returns for each of `keys` whether it gets one of the `places`.
local function fair_pick(keys, places)
  local turns, seen, per_turn = {}, {}, {}
  for i = 1, #keys do
    local turn = (seen[keys[i]] or 0) + 1
    seen[keys[i]] = turn
    turns[i] = turn
    per_turn[turn] = (per_turn[turn] or 0) + 1
  end
  local left, last = places, 1
  while per_turn[last] and per_turn[last] <= left do
    left = left - per_turn[last]
    last = last + 1
  end
  local picked = {}
  for i = 1, #keys do
    picked[i] = turns[i] < last
    if turns[i] == last and left > 0 then
      picked[i] = true
      left = left - 1
    end
  end
  return picked
end
