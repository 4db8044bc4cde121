-- Move what a plain client sent with a priority to the end of its queue, in its order.
--
-- KEYS  1 bell  then per queue: the queue, and as many lists of priorities
-- ARGV  1 lists of priorities per queue  2 how many messages to move at most
-- Returns how many were moved. A repeat moves what has come since.
local width = 1 + ARGV[1]
local left = tonumber(ARGV[2])
local moved = 0
for at = 2, #KEYS, width do
  for list = at + 1, at + width - 1 do
    while moved < left and redis.call('LMOVE', KEYS[list], KEYS[at], 'RIGHT', 'LEFT') do moved = moved + 1 end
  end
end
if moved > 0 and redis.call('EXISTS', KEYS[1]) == 0 then redis.call('LPUSH', KEYS[1], 1) end
return moved
