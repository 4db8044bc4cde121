-- How often one key may ask: batching/policy/gcra.py is the same arithmetic, and tests hold the two together.
-- A state that no clock before `now` can have left: Redis' clock has gone back, and the key begins anew.
local function gcra_known(tat, now, interval, burst)
  return tat - now > (2 * burst - 1) * interval and now or tat
end

-- `count` at once, or one: all of them or none.
local function gcra_take(tat, now, interval, burst, count)
  local due = math.max(gcra_known(tat, now, interval, burst), now) + interval * (count or 1)
  local early = due - burst * interval - now
  if early > 0 then return nil, early end
  return due, 0
end

local function gcra_remaining(tat, now, interval, burst)
  local left = (now + burst * interval - math.max(gcra_known(tat, now, interval, burst), now)) / interval
  return math.max(0, math.floor(left + 1e-6))
end
