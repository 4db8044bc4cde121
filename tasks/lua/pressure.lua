-- Admission of one more request: batching/policy/admission.py has the same arithmetic, and tests compare the
-- two.
--
-- A pressure is a table: depths and arrivals per tier, highest first; waiting, the sum of the depths; rate, first_ms,
-- full_ms and full. A rule: form ('drain', 'depth', 'off'), headroom, shares per tier, ageing_ms, aged_share. Ranks
-- count from 1 here. Times are in milliseconds, the rate is per second.

-- Two factors that are constant within a flush: the wait of a tier is `ahead` × the first, or `depth` × the second plus
-- the ageing time, whichever is less.
local function drain_factors(pressure, rule, rank)
  local left = pressure.rate
  for i = rank + 1, #pressure.depths do
    if pressure.depths[i] > 0 then left = left - rule.shares[i] * pressure.rate end
  end
  for i = 1, rank - 1 do left = left - pressure.arrivals[i] end
  local aged = rank > 1 and 1000 / (rule.aged_share * pressure.rate) or math.huge
  return left > 0 and 1000 / left or math.huge, aged
end

local function wait_ms(pressure, rule, rank, by_preference, by_age)
  local ahead = 0
  for i = 1, rank do ahead = ahead + pressure.depths[i] end
  -- Avoids infinity × 0.
  local preferred = by_preference < math.huge and ahead * by_preference or math.huge
  if rank == 1 then return preferred end
  return math.min(preferred, rule.ageing_ms + pressure.depths[rank] * by_age)
end

-- `threshold` is in milliseconds or requests; below 0 means none.
local function room_of(pressure, rule, rank, threshold, queue_limit)
  local capacity = pressure.rate * rule.headroom
  if rule.form == 'off' then return math.huge end
  if rule.form == 'depth' then
    local arrivals = 0
    for i = 1, #pressure.arrivals do arrivals = arrivals + pressure.arrivals[i] end
    if rank == #pressure.depths and capacity > 0 and arrivals > capacity then return -1 end
    return threshold < 0 and math.huge or threshold
  end
  if pressure.rate <= 0 then return math.huge end
  return (threshold < 0 and queue_limit * pressure.rate or threshold * capacity) / 1000
end

local function batch_ms(pressure)
  return pressure.first_ms + (pressure.full_ms - pressure.first_ms) * math.min(1, pressure.waiting / pressure.full)
end
