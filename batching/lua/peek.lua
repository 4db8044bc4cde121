-- Say which models have something to claim: a message in a queue that is not paused, or a retry whose pause is over.
--
-- KEYS  per model: its delayed (zset), then its queues, highest tier first
-- ARGV  queues: per model; then per model: a digit for each queue, 0 for one that is paused
-- Returns the numbers of those models, from 1. Changes nothing, so it may be repeated.
--
-- Nearly always nothing waits anywhere, and a list or set that is empty does not exist: one command says so.
if redis.call('EXISTS', unpack(KEYS)) == 0 then return {} end
local queues = tonumber(ARGV.queues)
local now = now_ms()
local found = {}
for model = 1, #ARGV - ARGV.width do
  local at = (model - 1) * (1 + queues) + 1
  local waits = #redis.call('ZRANGEBYSCORE', KEYS[at], '-inf', string.format('%.0f', now), 'LIMIT', 0, 1) > 0
    or #retries_from_the_future(KEYS[at], now) > 0
  for rank = 1, queues do
    waits = waits or (string.byte(ARGV[ARGV.width + model], rank) ~= 48 and redis.call('EXISTS', KEYS[at + rank]) == 1)
  end
  if waits then found[#found + 1] = model end
end
return found
