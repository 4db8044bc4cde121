-- Outcomes for callers who wait in frontend processes: gathered, then one message to each channel.
--
-- Above this a reply carries the id alone and the frontend reads the stored key: a large value must not sit in the
-- output buffer of a subscriber that is slow (`client-output-buffer-limit pubsub`).
local MAX_INLINE = 65536

local replies = {}

local function reply(channel, id, result)
  local to = replies[channel]
  if not to then
    to = {}
    replies[channel] = to
  end
  to[#to + 1] = #result <= MAX_INLINE and result or ('{"task_id":"' .. id .. '","status":"STORED"}')
end

-- Returns for each channel whether anybody listened.
local function send_replies()
  local heard = {}
  for channel, to in pairs(replies) do
    heard[channel] = redis.call('PUBLISH', channel, '[' .. table.concat(to, ',') .. ']') > 0
  end
  return heard
end
