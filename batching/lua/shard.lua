-- In front of every script: names that end in the tag of its shard, which every first key has; '' for the only shard.
local TAG = string.match(KEYS[1], '{s%d+}') or ''

local function result_key(id)
  return 'celery-task-meta-' .. id .. TAG
end

-- Returns the number of those who heard it. In a cluster a plain PUBLISH does not count those on other nodes.
local function publish(channel, text)
  return redis.call(TAG == '' and 'PUBLISH' or 'SPUBLISH', channel, text)
end

