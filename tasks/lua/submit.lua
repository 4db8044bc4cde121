-- Admit and queue the requests of one flush; a refused one leaves no trace.
--
-- KEYS  flush: its answer (string); arrivals: prefix of the arrivals hashes, one per second
--       then per model, ModelKeys: bell; capacity: string; pace: hash; edition: string; and for each of its tiers,
--       highest first, TierKeys: queue; held: waiting requests per key (hash)
--       then per quota: its state (string)
--       then, if any may be a repeat, DedupKeys, prefixes of names: asked: marks; joined: waiting requests;
--       cached: cached answers
-- ARGV  header: a FlushHeader in MessagePack: channel: for replies; rules: RuleArgs, form: of the thresholds; headroom;
--       max_memory: the fraction of Redis' memory that may be used; ageing_ms; aged_share: share of an aged tier;
--       shares: of the tiers; depth_limits: of each model's queues; classes; runs; asks: nothing is queued or counted,
--       the answer is what would become of them now. Their messages are '0', without what may be repeats
--       A class (model, tier and quota) is a ClassRow: model, rank: numbers of the model and the tier; threshold;
--       quota: its number (0: none); interval_us; burst; tag: of its key; tier: its name if its requests may be
--       repeats, else ''; kept: whether answers of its model are cached
--       A run of messages that have these in common is a RunRow: number: of the class; deadline_ms, queue_limit_ms:
--       from now; words: of a message; messages: how many
--       then per message: if it has two words, the key for the caller's own request id ('' if it gave none), and the
--       rest of the message from the fast header's tracked mark on. Where requests may be repeats, instead of that key:
--       the question ('' if it is not shared), and if it has any of them, on lines of their own, that key, the name of
--       its Idempotency-Key, and the hash of its request under that key; then it is never empty
-- Returns a Status per message (tasks/client/admission_codes.py), one character: QUEUED, or why it was not. If any was
-- not, a line feed, and for each of those: ms until a retry is worth it;what is left of its quota;ms until the quota is
-- whole again. For REPEATED the first is the id of the request whose outcome it gets; for ANSWERED and JOINED there is
-- nothing. A flush whose reply was lost may be sent again: its answer is remembered, and only that is returned
-- again.
local known = redis.call('GET', KEYS.flush)
if known then return known end

local clock_us = now_us()
local now = math.floor(clock_us / 1000)
local header = cmsgpack.unpack(ARGV.header)
local rules, shares = header[FlushHeader.rules], header[FlushHeader.shares]
local limits, rows = header[FlushHeader.depth_limits], header[FlushHeader.classes]
local tiers, form = #shares, rules[RuleArgs.form]
local rule = false
if form ~= 'off' then
  rule = {
    form = form, headroom = rules[RuleArgs.headroom], ageing_ms = rules[RuleArgs.ageing_ms],
    aged_share = rules[RuleArgs.aged_share], shares = shares,
  }
end

local models = {}
local key = KEYS.width
for m = 1, #limits do
  local model = {
    -- The keys of tier i are after KEYS[tiers_at + TierKeys.width * i].
    bell = KEYS[key + ModelKeys.bell], tiers_at = key + ModelKeys.width - TierKeys.width,
    edition_key = KEYS[key + ModelKeys.edition], kept_in = false,
    -- All fields at once, since a table that grows is reallocated.
    depths = {}, fresh = {}, waiting = 0, limit = limits[m], keyed = false,
    rate = 0, first_ms = 0, full_ms = 0, full = 1, memory = 0, fall = 0, arrivals = false, steady = false,
  }
  if form ~= 'off' then
    capacity_of(model, KEYS[key + ModelKeys.capacity], KEYS[key + ModelKeys.pace], tiers, KEYS.arrivals, now)
    for i = 1, tiers do
      local depth = redis.call('LLEN', KEYS[model.tiers_at + TierKeys.width * i + TierKeys.queue])
      model.depths[i], model.waiting = depth, model.waiting + depth
    end
  end
  models[m] = model
  key = key + ModelKeys.width + TierKeys.width * tiers
end

local classes, any_once = {}, false
for c = 1, #rows do
  local row = rows[c]
  local model, rank, once = models[row[ClassRow.model]], row[ClassRow.rank], row[ClassRow.tier]
  local depth = model.depths[rank]
  if not depth then
    -- Without thresholds only a request's own queue matters to it.
    depth = redis.call('LLEN', KEYS[model.tiers_at + TierKeys.width * rank + TierKeys.queue])
    model.depths[rank], model.waiting = depth, model.waiting + depth
  end
  local fresh = model.fresh[rank]
  if not fresh then
    fresh = {}
    model.fresh[rank] = fresh
  end
  local class = {
    model = model, rank = rank, added = 0, own = 0,
    threshold = row[ClassRow.threshold], quota = row[ClassRow.quota],
    by_preference = 0, by_age = 0, state = false, interval = 0, burst = 0, tag = false, head = '', calm = -1,
    fresh = fresh,
    once = once ~= '' and once, kept = row[ClassRow.kept], marked = '', mark = '',
  }
  if model.rate > 0 then class.by_preference, class.by_age = drain_factors(model, rule, rank) end
  if class.quota > 0 then
    class.state, class.tag, model.keyed = KEYS[key + class.quota], row[ClassRow.tag], model.keyed or {}
    class.interval, class.burst = row[ClassRow.interval_us], row[ClassRow.burst]
    model.keyed[rank] = true
    if depth > 0 then
      local held = KEYS[model.tiers_at + TierKeys.width * rank + TierKeys.held]
      class.own = tonumber(redis.call('HGET', held, class.tag) or 0)
    end
  end
  classes[c] = class
  any_once = any_once or class.once
end

local flush = {
  now = now, clock_us = clock_us, form = form, rule = rule, most_memory = rules[RuleArgs.max_memory],
  channel = header[FlushHeader.channel], prefix = TRACKED - 1, classes = classes, runs = header[FlushHeader.runs],
  any_once = any_once,  statuses = {}, details = {}, tats = {}, spent = {},
  lasts = false, names = false, marks = false, conclude = false,
}
local statuses, details, tats = flush.statuses, flush.details, flush.tats
local judge_one_by_one

local first = ARGV.width + 1
for r = 1, #flush.runs do
  local run = flush.runs[r]
  local class, words, count = classes[run[RunRow.number]], run[RunRow.words], run[RunRow.messages]
  local deadline, limit = run[RunRow.deadline_ms], run[RunRow.queue_limit_ms]
  local after = first + words * count
  local model = class.model
  local head = string.format('%s%013d;%013d;%013d;00;0;', HEAD, now + deadline, now + limit, now)
  if class.head ~= head then
    class.head, class.calm = head, calm_of(flush, class, deadline, limit)
  end
  local fresh, depths, rank = class.fresh, model.depths, class.rank
  if all_are_let_in(flush, class, count) then
    local n = #fresh
    for i = first, after - 1, words do
      local rest = ARGV[i + words - 1]
      if string.byte(rest, 1) == 49 then track(flush, rest, deadline, words == 1 and '' or ARGV[i]) end
      n = n + 1
      fresh[n] = head .. rest
    end
    depths[rank], model.waiting = depths[rank] + count, model.waiting + count
    statuses[#statuses + 1] = string.rep(Status.QUEUED, count)
  else
    judge_one_by_one = judge_one_by_one or judging(flush, r, first)
    judge_one_by_one(class, deadline, limit, first, after - 1, words, head)
  end
  first = after
end

local function answer()
  local said = table.concat(statuses)
  if #details > 0 then said = said .. '\n' .. table.concat(details, ',') end
  return said
end
if header[FlushHeader.asks] then return answer() end

local counted = KEYS.arrivals .. string.format('%.0f', math.floor(now / 1000))
for m = 1, #limits do
  local model = models[m]
  local any = false
  for rank, fresh in pairs(model.fresh) do
    if #fresh > 0 then
      any = true
      local tier = model.tiers_at + TierKeys.width * rank
      local queue = KEYS[tier + TierKeys.queue]
      -- Counts for an empty queue are left over from a purge.
      if model.keyed and model.keyed[rank] and model.depths[rank] == #fresh then
        redis.call('DEL', KEYS[tier + TierKeys.held])
      end
      for j = 1, #fresh, 500 do redis.call('LPUSH', queue, unpack(fresh, j, math.min(j + 499, #fresh))) end
      if redis.call('HINCRBY', counted, queue, #fresh) == #fresh then redis.call('EXPIRE', counted, 30) end
    end
  end
  if any and redis.call('EXISTS', model.bell) == 0 then redis.call('LPUSH', model.bell, 1) end
end
for c = 1, #classes do
  local class = classes[c]
  if class.added > 0 then
    local held = KEYS[class.model.tiers_at + TierKeys.width * class.rank + TierKeys.held]
    redis.call('HINCRBY', held, class.tag, class.added)
  end
end
for state in pairs(flush.spent) do
  local tat = tats[state]
  redis.call('SET', state, string.format('%.0f', tat), 'PX', math.max(1, math.ceil((tat - clock_us) / 1000)))
end

if flush.lasts then
  -- Only after all the requests that the marks name are queued.
  local last, ends
  for question, keep in pairs(flush.lasts) do
    if keep ~= last then last, ends = keep, string.format('%.0f', now + keep) end
    redis.call('SET', flush.names.asked .. question, flush.marks[question], 'PXAT', ends)
  end
end
if flush.conclude then flush.conclude() end

local said = answer()
redis.call('SET', KEYS.flush, said, 'PX', 30000)
return said
