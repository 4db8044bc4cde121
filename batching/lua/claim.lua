-- Pop a batch and lease it, in one breath: there is no moment at which a message is neither queued nor leased.
--
-- KEYS  1 lease (list)  2 leases of the worker (set)  3 workers (zset)  4 cancelled (zset)  5 share (hash)
--       6 delayed (zset)  7… queues, highest tier first
-- ARGV  1 batch id  2 worker id  3 model  4 size  5… guaranteed share of each queue (0 for the highest)
--       then the size of a batch of suspects after 1, 2, … lost attempts
-- Returns {now_ms, entries, depths, oldest enqueued_ms}. An entry is <rank><verdict><message>; verdict '-' run it,
-- 'x' its time has passed, 'c' its caller took it back. Those two are leased as well, since somebody must still be
-- told, and do not count towards the size. A repeated call with the same batch id returns the same entries.
--
-- Whatever an executor died of may be in the batch that it had inside, so those requests are suspects: they run among
-- themselves, in smaller batches each time, the last time alone. They stand at the head of their queue.
local QUEUES = 6
-- Keeps one call short when a long queue has expired as a whole; the next call goes on.
local MAX_DROPPED = 256

local now = now_ms()
local count = #KEYS - QUEUES
local size = tonumber(ARGV[4])
local SUSPECTS = 4 + count
local result_prefix = 'celery-task-meta-'

local function view()
  local depths, oldest = {}, {}
  for i = 1, count do
    depths[i] = redis.call('LLEN', KEYS[QUEUES + i])
    oldest[i] = 0
    if depths[i] > 0 then
      local last = redis.call('LINDEX', KEYS[QUEUES + i], -1)
      if stamped(last) then oldest[i] = field(last, ENQUEUED, 13) end
    end
  end
  return depths, oldest
end

if redis.call('EXISTS', KEYS[1]) == 1 then
  local depths, oldest = view()
  return {now, redis.call('LRANGE', KEYS[1], 1, -1), depths, oldest}
end

wake_delayed(KEYS[6], QUEUES + 1, now)

-- Suspects first: a batch of theirs takes from one queue alone.
local function suspect_size(message)
  local lost = losses(message)
  if lost == 0 then return nil end
  return tonumber(ARGV[math.min(SUSPECTS + lost, #ARGV)])
end
local only
for i = 1, count do
  local head = redis.call('LINDEX', KEYS[QUEUES + i], -1)
  local limit = head and suspect_size(head)
  if limit then
    only = i
    size = math.min(size, limit)
    break
  end
end

-- How many from each tier: batching/policy/tiers.py is the same rule, and tests hold the two together.
local depths, waiting = {}, 0
for i = 1, count do
  depths[i] = (only and only ~= i) and 0 or redis.call('LLEN', KEYS[QUEUES + i])
  waiting = waiting + depths[i]
end
if waiting == 0 then
  local d, o = view()
  return {now, {}, d, o}
end

local credits, takes, left = {}, {}, size
local top = 0
for i = 1, count do
  takes[i] = 0
  if top == 0 and depths[i] > 0 then top = i end
end
local contended = waiting > size
for i = 1, count do
  credits[i] = 0
  if contended and i > top and depths[i] > 0 then
    local saved = tonumber(redis.call('HGET', KEYS[5], i) or '0')
    credits[i] = math.min(saved + tonumber(ARGV[4 + i]) * size, size)
    takes[i] = math.min(math.floor(credits[i] + 1e-9), depths[i], left)
    left = left - takes[i]
    credits[i] = credits[i] - takes[i]
  end
end
for i = 1, count do
  local more = math.min(left, depths[i] - takes[i])
  takes[i] = takes[i] + more
  left = left - more
end
if contended then
  for i = 1, count do
    redis.call('HSET', KEYS[5], i, string.format('%.6f', credits[i]))
  end
end

local any_cancelled = redis.call('EXISTS', KEYS[4]) == 1
local entries, dropped, taken = {}, 0, 0
local closed = false
local function pop(i, want)
  while want > 0 and dropped < MAX_DROPPED and not closed do
    local messages = redis.call('RPOP', KEYS[QUEUES + i], want)
    if not messages then return want end
    for j = 1, #messages do
      local message = messages[j]
      local verdict = '-'
      local limit_here = suspect_size(message)
      if (limit_here ~= nil) ~= (only ~= nil) or (limit_here and taken >= limit_here) then
        -- A suspect among others, or the other way round: it and what stands behind it wait for a batch of their own.
        for k = #messages, j, -1 do redis.call('RPUSH', KEYS[QUEUES + i], messages[k]) end
        closed = true
        return 0
      end
      if limit_here and limit_here < size then
        size = limit_here
        want = size - taken
      end
      if stamped(message) then
        local limit = field(message, LIMIT, 13)
        if limit > 0 and limit <= now then
          verdict = 'x'
        elseif any_cancelled and redis.call('ZREM', KEYS[4], task_id(message)) == 1 then
          verdict = 'c'
        elseif tracked(message) then
          local id = task_id(message)
          redis.call('SET', result_prefix .. id, state_of(id, 'STARTED'), 'XX', 'KEEPTTL')
        end
      end
      if verdict == '-' then
        want = want - 1
        taken = taken + 1
      else
        dropped = dropped + 1
      end
      entries[#entries + 1] = (i - 1) .. verdict .. message
    end
  end
  return want
end

local short = 0
for i = 1, count do short = short + pop(i, takes[i]) end
-- Places freed by the expired and cancelled go to whoever still waits.
if dropped > 0 then
  for i = 1, count do
    if short > 0 then short = pop(i, short) end
  end
end

if #entries > 0 then
  redis.call('RPUSH', KEYS[1], ARGV[2] .. '\n' .. ARGV[3])
  for i = 1, #entries, 1000 do
    redis.call('RPUSH', KEYS[1], unpack(entries, i, math.min(i + 999, #entries)))
  end
  redis.call('SADD', KEYS[2], ARGV[1])
  -- A claim is a heartbeat: no lease may exist whose worker nobody watches.
  redis.call('ZADD', KEYS[3], now, ARGV[2])
end
local after, oldest = view()
return {now, entries, after, oldest}
