-- The time after which the rule that refused a request admits one again: batching/policy/admission.py has the same
-- arithmetic, and tests compare the two. Pressures and rules are as in pressure.lua; a pressure also has `steady`, the
-- lowest arrivals per tier of the last few seconds, so that a burst does not count as a steady rate.
--
-- Made when a request is refused: admitted ones must not pay for these functions.
local function timetable()
  local MOST_MS = 60000

  -- Requests leave in batches, `each` per batch, until `excess` have left; the current batch is half done on average.
  local function claims_ms(pressure, excess, each)
    local interval = pressure.full / pressure.rate * 1000
    if pressure.full_ms > 0 then interval = interval * batch_ms(pressure) / pressure.full_ms end
    return (math.max(1, math.ceil(excess / each)) - 0.5) * interval
  end

  local function a_batch(pressure)
    return math.max(1, math.min(pressure.full, pressure.waiting))
  end

  -- The fraction of the rate that reduces the queue while higher tiers continue to arrive; at least a tenth.
  local function lessens(pressure, rank, own)
    local left = pressure.rate
    for i = 1, rank - 1 do left = left - pressure.steady[i] end
    return math.max(0.1, (left - pressure.steady[rank] * own) / pressure.rate)
  end

  -- Meanwhile others of its tier are admitted, and the key's own requests count twice.
  local function share_ms(pressure, rank, room, own)
    local mine = math.min(1, own / math.max(1, pressure.waiting))
    local each = a_batch(pressure) * lessens(pressure, rank, 1 - mine) * (1 + mine)
    return claims_ms(pressure, pressure.waiting + own - math.floor(room), each)
  end

  local function pressure_ms(pressure, rank, room)
    -- More arrives than the capacity allows: in a second that may have changed.
    if room < 0 then return 1000 end
    return claims_ms(pressure, pressure.waiting - math.floor(room), a_batch(pressure) * lessens(pressure, rank, 0))
  end

  local function full_ms(pressure, rule, rank, limit)
    local ahead, size = 0, a_batch(pressure)
    for i = 1, rank - 1 do ahead = ahead + pressure.depths[i] end
    -- Behind a higher tier that fills the batches it gets the share of an aged tier.
    local each = ahead < size and size - ahead or rule.aged_share * size
    return claims_ms(pressure, pressure.depths[rank] - limit + 1, each)
  end

  -- The wait shrinks by a second per second, until there is time for it and for the batch.
  local function hopeless_ms(pressure, rule, rank, deadline, queue_limit)
    local arrivals = pressure.arrivals
    pressure.arrivals = pressure.steady
    local wait = wait_ms(pressure, rule, rank, drain_factors(pressure, rule, rank))
    pressure.arrivals = arrivals
    -- The batch that it would be in holds what waits at that time.
    local time = deadline - pressure.full_ms
    if time * pressure.rate / 1000 < pressure.full then
      local more = (pressure.full_ms - pressure.first_ms) * pressure.rate / 1000 / pressure.full
      time = (deadline - pressure.first_ms) / (1 + more)
    end
    time = math.min(time, queue_limit)
    -- A deadline that is too short for any batch does not become feasible.
    if time <= 0 then return math.max(wait, 1000) end
    return math.max(0, wait - time) + claims_ms(pressure, 1, 1)
  end

  local function bounded(ms)
    return math.max(1, math.min(MOST_MS, ms))
  end

  return {
    share = function(...) return bounded(share_ms(...)) end,
    pressure = function(...) return bounded(pressure_ms(...)) end,
    full = function(...) return bounded(full_ms(...)) end,
    hopeless = function(...) return bounded(hopeless_ms(...)) end,
    -- By the recent decrease of the used fraction of Redis' memory per second.
    memory = function(used, most, fall)
      if fall <= 0 then return 1000 end
      return bounded((used - most) / fall * 1000)
    end,
  }
end
