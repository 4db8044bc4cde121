-- The rate limit of one key (GCRA): batching/policy/gcra.py has the same arithmetic, and tests compare the two.
-- A state too far in the future was left before Redis' clock went back: the key starts anew.
local function gcra_known(tat, now, interval, burst)
  return tat - now > (2 * burst - 1) * interval and now or tat
end

-- Take `count` requests, or one: all of them or none.
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
