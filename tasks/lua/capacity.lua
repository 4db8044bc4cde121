-- The capacity of a model's workers, and the memory of Redis: measured at most four times a second, and cached.
--
-- Workers write their capacity with each heartbeat (batching/lua/beat.lua): <time>;<executors>;<rate of each>;<ms of a
-- batch of one>;<ms of a full one>. A worker that has not beaten for FRESH_MS counts as 0: with the age of the cached
-- value a lost worker shows within two seconds. An executor without a measured rate counts as fast as the others.
local KEEP_MS = 250
-- How long the last measurement is kept for comparison.
local COMPARE_MS = 5000

-- Measure the values that are cached. `kept` is the last of them, or false, and `age` its age. The functions are
-- inside, so that a flush that finds a fresh value does not pay for them.
local function measured(model, kept, age, pace, tiers, arrivals, now)
  local FRESH_MS = 1750
  local FORGET_MS = 60000
  -- The number of seconds in which arrivals must continue; shorter ones may be a burst.
  local STEADY_S = 3

  local function fleet_of()
    local rows = redis.call('HGETALL', pace)
    local executors, known, rate, first, full = 0, 0, 0, 0, 0
    for i = 1, #rows, 2 do
      local at, ready, each, one, all = string.match(rows[i + 1], '^(%d+);(%d+);([%d.]+);([%d.]+);([%d.]+)$')
      -- A time in the future: Redis' clock has gone back, and a live worker beats again within a second.
      if not at or math.abs(now - at) > FORGET_MS then
        redis.call('HDEL', pace, rows[i])
      elseif math.abs(now - at) <= FRESH_MS then
        executors = executors + ready
        if tonumber(each) > 0 then
          known = known + ready
          rate, first, full = rate + each * ready, first + one * ready, full + all * ready
        end
      end
    end
    if known == 0 then return 0, 0, 0, 1 end
    return rate * executors / known, first / known, full / known, math.max(1, rate / known * full / known / 1000)
  end

  -- The fraction of its memory that Redis uses; 0 if it has no limit, or does not tell.
  local function memory_used()
    local info = redis.pcall('INFO', 'memory')
    if type(info) ~= 'string' then return 0 end
    local used, limit = string.match(info, '\nused_memory:(%d+)'), string.match(info, '\nmaxmemory:(%d+)')
    return used and limit and tonumber(limit) > 0 and used / limit or 0
  end

  -- The arrivals of each tier in the last second, and the lowest of the last few seconds.
  local function come_of()
    local queues, last, least = {}, {}, {}
    for i = 1, tiers do queues[i] = KEYS[model.tiers_at + TierKeys.width * i + TierKeys.queue] end
    for ago = 1, STEADY_S do
      local second = string.format('%.0f', math.floor(now / 1000) - ago)
      local counts = redis.call('HMGET', arrivals .. second, unpack(queues))
      for i = 1, tiers do
        local count = tonumber(counts[i] or 0)
        if ago == 1 then last[i] = count end
        least[i] = math.min(least[i] or count, count)
      end
    end
    return last, least
  end

  local rate, first, full, size = fleet_of()
  local memory, fall = memory_used(), 0
  if kept and age > 0 then
    local before, falling = struct.unpack('<dd', kept, 41)
    fall = (falling + (before - memory) / age * 1000) / 2
  end
  local last, least = come_of()
  local each = '<' .. string.rep('d', tiers)
  return struct.pack('<ddddddd', now, rate, first, full, size, memory, fall)
    .. struct.pack(each, unpack(last)) .. struct.pack(each, unpack(least))
end

-- Set a model's capacity; `arrivals` is the prefix of the hashes that count admitted requests. The cached value is a
-- list of doubles: its time, six figures, and each tier's arrivals in the last second and in each of the last few. A
-- key's lifetime does not help when Redis' clock goes back. `fall` is the recent decrease of the used memory per
-- second, as a fraction of the whole.
local function capacity_of(model, sample, pace, tiers, arrivals, now)
  local kept = redis.call('GET', sample)
  local age = kept and now - struct.unpack('<d', kept)
  if not kept or math.abs(age) > KEEP_MS then
    kept = measured(model, kept, age, pace, tiers, arrivals, now)
    redis.call('SET', sample, kept, 'PX', COMPARE_MS)
  end
  model.rate, model.first_ms, model.full_ms, model.full, model.memory, model.fall = struct.unpack('<dddddd', kept, 9)
  local each = '<' .. string.rep('d', tiers)
  model.arrivals = {struct.unpack(each, kept, 57)}
  model.steady = {struct.unpack(each, kept, 57 + 8 * tiers)}
  -- Drop the position that `unpack` returns last.
  model.arrivals[tiers + 1], model.steady[tiers + 1] = nil, nil
end
