-- When the rule that refused a request lets one in again: batching/policy/admission.py is the same arithmetic, and
-- tests hold the two together. Pressures and rules are as in pressure.lua, with `steady`: what has come per tier in
-- each of the last seconds, so that a burst is not taken for what goes on.
--
-- Made when somebody is refused; who is let in shall not pay for these functions.
local function timetable()
  local MOST_MS = 60000

  -- Requests leave by batches. Of `excess` that have to go, `each` with every batch; one is half over, on average.
  local function claims_ms(pressure, excess, each)
    local interval = pressure.full / pressure.rate * 1000
    if pressure.full_ms > 0 then interval = interval * batch_ms(pressure) / pressure.full_ms end
    return (math.max(1, math.ceil(excess / each)) - 0.5) * interval
  end

  local function a_batch(pressure)
    return math.max(1, math.min(pressure.full, pressure.waiting))
  end

  -- The part of the rate that lessens what waits, while the tiers above go on as they have; never none.
  local function lessens(pressure, rank, own)
    local left = pressure.rate
    for i = 1, rank - 1 do left = left - pressure.steady[i] end
    return math.max(0.1, (left - pressure.steady[rank] * own) / pressure.rate)
  end

  -- The others of its tier are let in meanwhile, and what it has itself counts twice.
  local function share_ms(pressure, rank, room, own)
    local mine = math.min(1, own / math.max(1, pressure.waiting))
    local each = a_batch(pressure) * lessens(pressure, rank, 1 - mine) * (1 + mine)
    return claims_ms(pressure, pressure.waiting + own - math.floor(room), each)
  end

  local function pressure_ms(pressure, rank, room)
    -- More comes than is promised: a second later it may be less.
    if room < 0 then return 1000 end
    return claims_ms(pressure, pressure.waiting - math.floor(room), a_batch(pressure) * lessens(pressure, rank, 0))
  end

  local function full_ms(pressure, rule, rank, limit)
    local ahead, size = 0, a_batch(pressure)
    for i = 1, rank - 1 do ahead = ahead + pressure.depths[i] end
    -- Behind a higher tier that fills batches it has the share of one that has aged.
    local each = ahead < size and size - ahead or rule.aged_share * size
    return claims_ms(pressure, pressure.depths[rank] - limit + 1, each)
  end

  -- Its wait grows shorter by a second a second, until there is time enough for it and its batch.
  local function hopeless_ms(pressure, rule, rank, deadline, queue_limit)
    local arrivals = pressure.arrivals
    pressure.arrivals = pressure.steady
    local wait = wait_ms(pressure, rule, rank, drain_factors(pressure, rule, rank))
    pressure.arrivals = arrivals
    -- The batch that it would be in then is as large as what waits then.
    local time = deadline - pressure.full_ms
    if time * pressure.rate / 1000 < pressure.full then
      local more = (pressure.full_ms - pressure.first_ms) * pressure.rate / 1000 / pressure.full
      time = (deadline - pressure.first_ms) / (1 + more)
    end
    time = math.min(time, queue_limit)
    -- A deadline that no batch keeps is no matter of time.
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
    -- By how fast the part of Redis' memory that is used has fallen of late, a second.
    memory = function(used, most, fall)
      if fall <= 0 then return 1000 end
      return bounded((used - most) / fall * 1000)
    end,
  }
end
