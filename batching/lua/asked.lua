-- Outcomes of questions that others may ask, or have asked and wait for (batching/asked.py).
--
-- A kept answer is <edition>\n<bytes up to the task id>\n<those><what follows the task id>. Those who wait for one are in
-- a hash: task id → <rank><message>, and '*' → <id of the one that is computed>;<its rank>;<its deadline>.
local CACHED, EDITION = 4, 5
-- What an entry costs beside its bytes: two keys' names, a place in the index.
local OVERHEAD = 300
-- No answer may take more than this part of all room.
local LARGEST = 1 / 64

local function read_asked(from)
  local asked, most = {}, tonumber(ARGV[from])
  for at = from + 1, #ARGV, 5 do
    asked[ARGV[at]] = {
      most = most, question = ARGV[at + 1], keep_ms = tonumber(ARGV[at + 2]), head = tonumber(ARGV[at + 3]),
      to_later = ARGV[at + 4],
    }
  end
  return asked
end

local function size_in(member)
  return tonumber(string.match(member, ';(%d+)$')) or 0
end

-- Keep an answer, in the place of the oldest ones if there is no room.
local function keep(q, result)
  local index, bytes_key = KEYS[CACHED], KEYS[CACHED] .. ':bytes'
  local key = index .. ':' .. q.question
  local entry = (redis.call('GET', KEYS[EDITION]) or '') .. '\n' .. q.head .. '\n' .. string.sub(result, 1, q.head) .. q.to_later
  local size, now = #entry + OVERHEAD, now_ms()
  if size > q.most * LARGEST then return end
  local bytes = tonumber(redis.call('GET', bytes_key) or '0')
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%.0f', now), 'LIMIT', 0, 100)
  for i = 1, #old do
    redis.call('ZREM', index, old[i])
    bytes = bytes - size_in(old[i])
  end
  local before = redis.call('STRLEN', key)
  if before > 0 and redis.call('ZREM', index, q.question .. ';' .. (before + OVERHEAD)) == 1 then
    bytes = bytes - before - OVERHEAD
  end
  while bytes + size > q.most do
    local oldest = redis.call('ZPOPMIN', index)[1]
    if not oldest then
      bytes = 0
      break
    end
    redis.call('DEL', index .. ':' .. string.match(oldest, '^%x+'))
    bytes = bytes - size_in(oldest)
  end
  redis.call('SET', key, entry, 'PX', q.keep_ms)
  redis.call('ZADD', index, now + q.keep_ms, q.question .. ';' .. size)
  redis.call('SET', bytes_key, string.format('%.0f', bytes + size))
end

-- A cache that cannot be written to costs a computation later on, never an answer now.
local function answer_asked(q, result)
  if q.keep_ms > 0 then pcall(keep, q, result) end
end
