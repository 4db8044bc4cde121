-- Admit and enqueue every message of one flush.
--
-- KEYS  1 this flush (string)  2 prefix of the arrivals hashes, one a second  then per queue: the queue, its model's bell
-- ARGV  1 number of queues  then the queue's depth limit, per queue
--       then per message: queue number, deadline in ms from now, queue limit in ms from now, the key for the caller's own
--       request id ('' if it gave none), the rest of the message from the stamp's tracked mark on
-- Returns one character per message: '0' queued, '1' refused (the queue is full).
-- A flush whose reply was lost may be sent again: it is remembered, and then only its answer is repeated.
local known = redis.call('GET', KEYS[1])
if known then return known end

local PREFIX = TRACKED - 1
local now = now_ms()
local queues = tonumber(ARGV[1])
local room, fresh = {}, {}
for q = 1, queues do
  room[q] = tonumber(ARGV[1 + q]) - redis.call('LLEN', KEYS[1 + 2 * q])
  fresh[q] = {}
end
local statuses = {}
local head, last_deadline, last_limit
for at = 2 + queues, #ARGV, 5 do
  local q = tonumber(ARGV[at])
  local list = fresh[q]
  if room[q] <= #list then
    statuses[#statuses + 1] = '1'
  else
    local deadline, limit = ARGV[at + 1], ARGV[at + 2]
    if deadline ~= last_deadline or limit ~= last_limit then
      head = string.format('%s%013d;%013d;%013d;00;0;', HEAD, now + deadline, now + limit, now)
      last_deadline, last_limit = deadline, limit
    end
    local rest = ARGV[at + 4]
    if string.byte(rest, 1) == 49 then
      local id = string.sub(rest, ID - PREFIX, string.find(rest, '"', 1, true) - 1)
      local keep = deadline + field(rest, TTL - PREFIX, 9)
      redis.call('SET', 'celery-task-meta-' .. id, state_of(id, 'PENDING'), 'PX', keep)
      if ARGV[at + 3] ~= '' then redis.call('SET', ARGV[at + 3], id, 'PX', keep) end
    end
    list[#list + 1] = head .. rest
    statuses[#statuses + 1] = '0'
  end
end
local arrivals = KEYS[2] .. string.format('%.0f', math.floor(now / 1000))
for q = 1, queues do
  local list = fresh[q]
  if #list > 0 then
    local queue, bell = KEYS[1 + 2 * q], KEYS[2 + 2 * q]
    for i = 1, #list, 500 do redis.call('LPUSH', queue, unpack(list, i, math.min(i + 499, #list))) end
    if redis.call('HINCRBY', arrivals, queue, #list) == #list then redis.call('EXPIRE', arrivals, 30) end
    if redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, 1) end
  end
end
local answer = table.concat(statuses)
redis.call('SET', KEYS[1], answer, 'PX', 30000)
return answer
