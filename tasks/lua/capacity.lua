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
    if not at or now - at > FORGET_MS then
      redis.call('HDEL', pace, rows[i])
    elseif now - at <= FRESH_MS then
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

-- `queues` are the model's, highest tier first; `arrivals` the prefix of the hashes that count what was let in.
local function capacity_of(sample, pace, arrivals, queues, now)
  local kept = redis.call('GET', sample)
  if not kept then
    local counts = redis.call('HMGET', arrivals .. string.format('%.0f', math.floor(now / 1000) - 1), unpack(queues))
    local parts = {fleet_of(pace, now)}
    parts[5] = memory_used()
    for i = 1, #queues do parts[5 + i] = tonumber(counts[i] or 0) end
    for i = 1, #parts do parts[i] = string.format('%.4f', parts[i]) end
    kept = table.concat(parts, ';')
    redis.call('SET', sample, kept, 'PX', KEEP_MS)
  end
  local numbers = {string.match(kept, string.rep('([%d.]+);?', 5 + #queues))}
  for i = 1, #numbers do numbers[i] = tonumber(numbers[i]) end
  return numbers
end
