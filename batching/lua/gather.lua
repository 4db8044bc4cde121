-- Move what plain clients sent with a priority to the end of its queue, in its order.
--
-- KEYS  per model: its bell, then per queue: the queue, and as many lists of priorities
-- ARGV  queues: per model; lists: of priorities per queue; max_moved: messages in one call
-- Returns how many were moved. A repeat moves what has come since.
--
-- Nearly always there is nothing, and an empty list does not exist: one command a model says so.
local width = 1 + ARGV.lists
local model = 1 + ARGV.queues * width
local left = tonumber(ARGV.max_moved)
local moved = 0
for bell = 1, #KEYS, model do
  local before = moved
  if redis.call('EXISTS', unpack(KEYS, bell + 1, bell + model - 1)) > 0 then
    for at = bell + 1, bell + model - 1, width do
      for list = at + 1, at + width - 1 do
        while moved < left and redis.call('LMOVE', KEYS[list], KEYS[at], 'RIGHT', 'LEFT') do moved = moved + 1 end
      end
    end
  end
  if moved > before and redis.call('EXISTS', KEYS[bell]) == 0 then redis.call('LPUSH', KEYS[bell], 1) end
end
return moved
