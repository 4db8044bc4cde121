-- What a model's fleet can do and how full Redis is: measured anew at most four times a second, and kept in between.
--
-- Workers write what they can do with each heartbeat (batching/lua/beat.lua): <time>;<executors>;<rate of each>;<ms of a
-- batch of one>;<ms of a full one>. Who has not beaten for FRESH_MS can do nothing: with the age of what is kept a lost
-- worker shows within two seconds. An executor without a rate is taken to be as fast as the others are.
local KEEP_MS = 250
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

-- Fill a model's figures in; `arrivals` is the prefix of the hashes that count what was let in. Kept as doubles: its time,
-- five, and how many arrived in each tier. A key's lifetime is no help when Redis' clock goes back.
local function capacity_of(model, sample, pace, tiers, arrivals, now)
  local kept = redis.call('GET', sample)
  if not kept or math.abs(now - struct.unpack('<d', kept)) > KEEP_MS then
    local queues = {}
    for i = 1, tiers do queues[i] = KEYS[model.queues + 2 * i] end
    local counts = redis.call('HMGET', arrivals .. string.format('%.0f', math.floor(now / 1000) - 1), unpack(queues))
    for i = 1, tiers do counts[i] = tonumber(counts[i] or 0) end
    local rate, first, full, size = fleet_of(pace, now)
    kept = struct.pack('<dddddd', now, rate, first, full, size, memory_used())
      .. struct.pack('<' .. string.rep('d', tiers), unpack(counts))
    redis.call('SET', sample, kept, 'PX', KEEP_MS)
  end
  model.rate, model.first_ms, model.full_ms, model.full, model.memory = struct.unpack('<ddddd', kept, 9)
  model.arrivals = {struct.unpack('<' .. string.rep('d', tiers), kept, 49)}
  -- Where it would read on.
  model.arrivals[tiers + 1] = nil
end
