-- What a model's fleet can do and how full Redis is: measured anew at most four times a second, and kept in between.
--
-- Workers write what they can do with each heartbeat (batching/lua/beat.lua): <time>;<executors>;<rate of each>;<ms of
-- a batch of one>;<ms of a full one>. Who has not beaten for FRESH_MS can do nothing: with the age of what is kept a
-- lost worker shows within two seconds. An executor without a rate is taken to be as fast as the others are.
local KEEP_MS = 250
-- For so long what was found is there to be compared with.
local COMPARE_MS = 5000
-- What came in each of so many seconds goes on; anything else may have been a burst.
local STEADY_S = 3
local FRESH_MS = 1750
local FORGET_MS = 60000

local function fleet_of(pace, now)
  local rows = redis.call('HGETALL', pace)
  local executors, known, rate, first, full = 0, 0, 0, 0, 0
  for i = 1, #rows, 2 do
    local at, ready, each, one, all = string.match(rows[i + 1], '^(%d+);(%d+);([%d.]+);([%d.]+);([%d.]+)$')
    -- From the future: Redis' clock has gone back since, and who lives beats again within a second.
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

-- The part of its memory that Redis has used; 0 when it has no limit, or does not say.
local function memory_used()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then return 0 end
  local used, limit = string.match(info, '\nused_memory:(%d+)'), string.match(info, '\nmaxmemory:(%d+)')
  return used and limit and tonumber(limit) > 0 and used / limit or 0
end

-- How many came in each tier in the last second, and in the poorest of the last few.
local function come_of(model, tiers, arrivals, now)
  local queues, last, least = {}, {}, {}
  for i = 1, tiers do queues[i] = KEYS[model.tiers_at + TierKeys.width * i + TierKeys.queue] end
  for ago = 1, STEADY_S do
    local counts = redis.call('HMGET', arrivals .. string.format('%.0f', math.floor(now / 1000) - ago), unpack(queues))
    for i = 1, tiers do
      local count = tonumber(counts[i] or 0)
      if ago == 1 then last[i] = count end
      least[i] = math.min(least[i] or count, count)
    end
  end
  return last, least
end

-- Fill a model's figures in; `arrivals` is the prefix of the hashes that count what was let in. Kept as doubles: its
-- time, six, and how many arrived in each tier, in the last second and in each of the last few. A key's lifetime is no
-- help when Redis' clock goes back. `fall` is by which part of it the memory that Redis uses has grown less a second,
-- of late.
local function capacity_of(model, sample, pace, tiers, arrivals, now)
  local kept = redis.call('GET', sample)
  local age = kept and now - struct.unpack('<d', kept)
  if not kept or math.abs(age) > KEEP_MS then
    local rate, first, full, size = fleet_of(pace, now)
    local memory, fall = memory_used(), 0
    if kept and age > 0 then
      local before, falling = struct.unpack('<dd', kept, 41)
      fall = (falling + (before - memory) / age * 1000) / 2
    end
    local last, least = come_of(model, tiers, arrivals, now)
    local each = '<' .. string.rep('d', tiers)
    kept = struct.pack('<ddddddd', now, rate, first, full, size, memory, fall)
      .. struct.pack(each, unpack(last)) .. struct.pack(each, unpack(least))
    redis.call('SET', sample, kept, 'PX', COMPARE_MS)
  end
  model.rate, model.first_ms, model.full_ms, model.full, model.memory, model.fall = struct.unpack('<dddddd', kept, 9)
  local each = '<' .. string.rep('d', tiers)
  model.arrivals = {struct.unpack(each, kept, 57)}
  model.steady = {struct.unpack(each, kept, 57 + 8 * tiers)}
  -- Where it would read on.
  model.arrivals[tiers + 1], model.steady[tiers + 1] = nil, nil
end
