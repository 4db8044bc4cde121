-- Admit and queue the requests of one flush; a refused one leaves no trace.
--
-- KEYS  flush: its answer (string); arrivals: prefix of the arrivals hashes, one per second
--       then per model, ModelKeys: bell; capacity: string; pace: hash; edition: string; and for each of its tiers,
--       highest first, TierKeys: queue; held: waiting requests per key (hash)
--       then per quota: its state (string)
--       then, if any may be a repeat, DedupKeys, prefixes of names: asked: marks; joined: waiting requests;
--       cached: cached answers
-- ARGV  models; tiers; classes: how many follow; channel: for replies
--       form: of the thresholds; headroom; max_memory: the fraction of Redis' memory that may be used; ageing_ms;
--       aged_share: share of an aged tier; then the shares of the tiers
--       then per model: depth limit of each of its queues
--       then per class (model, tier and quota) a ClassRow: model, rank: numbers of the model and the tier; threshold;
--       quota: its number (0: none); interval_us; burst; tag: of its key; tier: its name if its requests may be
--       repeats, else ''; kept: '1' if answers of its model are cached
--       then per run of messages that have these in common a RunRow: number: of the class; deadline_ms, queue_limit_ms:
--       from now; words: of a message; messages: how many follow
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

local PREFIX = TRACKED - 1
local LATER_MS = 1000
local clock_us = now_us()
local now = math.floor(clock_us / 1000)
local models_count, tiers, classes_count = tonumber(ARGV.models), tonumber(ARGV.tiers), tonumber(ARGV.classes)
local form, most_memory = ARGV.form, tonumber(ARGV.max_memory)
local rule
if form ~= 'off' then
  rule = {
    form = form, headroom = tonumber(ARGV.headroom), ageing_ms = tonumber(ARGV.ageing_ms),
    aged_share = tonumber(ARGV.aged_share),
    shares = {tonumber(ARGV[ARGV.width + 1]), tonumber(ARGV[ARGV.width + 2]), tonumber(ARGV[ARGV.width + 3])},
  }
end
local at = ARGV.width + tiers

local models = {}
local key = KEYS.width
for m = 1, models_count do
  local model = {
    -- The keys of tier i are after KEYS[tiers_at + TierKeys.width * i].
    bell = KEYS[key + ModelKeys.bell], tiers_at = key + ModelKeys.width - TierKeys.width,
    edition_key = KEYS[key + ModelKeys.edition], kept_in = false,
    -- All fields at once, since a table that grows is reallocated.
    depths = {}, fresh = {}, waiting = 0, limit = tonumber(ARGV[at + m]), keyed = false,
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
at = at + models_count

local classes, any_once = {}, false
for c = 1, classes_count do
  local model, rank = models[tonumber(ARGV[at + ClassRow.model])], tonumber(ARGV[at + ClassRow.rank])
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
    threshold = tonumber(ARGV[at + ClassRow.threshold]), quota = tonumber(ARGV[at + ClassRow.quota]),
    by_preference = 0, by_age = 0, state = false, interval = 0, burst = 0, tag = false, head = '', calm = -1,
    fresh = fresh,
    once = ARGV[at + ClassRow.tier] ~= '' and ARGV[at + ClassRow.tier], kept = ARGV[at + ClassRow.kept] == '1',
    marked = '', mark = '',
  }
  if model.rate > 0 then class.by_preference, class.by_age = drain_factors(model, rule, rank) end
  if class.quota > 0 then
    class.state, class.tag, model.keyed = KEYS[key + class.quota], ARGV[at + ClassRow.tag], model.keyed or {}
    class.interval, class.burst = tonumber(ARGV[at + ClassRow.interval_us]), tonumber(ARGV[at + ClassRow.burst])
    model.keyed[rank] = true
    if depth > 0 then
      local held = KEYS[model.tiers_at + TierKeys.width * rank + TierKeys.held]
      class.own = tonumber(redis.call('HGET', held, class.tag) or 0)
    end
  end
  classes[c] = class
  any_once = any_once or class.once
  at = at + ClassRow.width
end

-- How many requests may wait (plus those of its own key) so that no request of this class is refused, whatever waits:
-- the common case, in which a request costs one comparison.
local function calm_of(class, deadline, queue_limit)
  local model = class.model
  if model.memory > most_memory then return -1 end
  local calm = model.limit - 1
  if form == 'off' or (model.rate <= 0 and form == 'drain') then return calm end
  calm = math.min(calm, room_of(model, rule, class.rank, class.threshold, queue_limit))
  if model.rate <= 0 then return calm end
  return math.min(calm, math.min(queue_limit, deadline - model.full_ms) / class.by_preference)
end

local statuses, details = {}, {}
local tats, spent = {}, {}

-- The state of a quota, shared by a caller's models and tiers.
local function tat_of(class)
  local tat = tats[class.state]
  if not tat then
    tat = tonumber(redis.call('GET', class.state) or 0)
    tats[class.state] = tat
  end
  return tat
end

-- Made when a request is not obviously admitted: the common case must not pay for these functions.
local function judges()
  -- Without thresholds the capacity is not known, and no time can be predicted.
  local later = form ~= 'off' and timetable()

  local function over_rate(class)
    if class.quota == 0 then return nil end
    local due, early = gcra_take(tat_of(class), clock_us, class.interval, class.burst)
    if not due then return Status.RATE, early / 1000 end
    return nil, due
  end

  -- Why one more request of this class is refused, and when to retry; nil if it is admitted.
  local function refusal(class, deadline, queue_limit)
    local model = class.model
    local why, due
    if class.quota > 0 then
      why, due = over_rate(class)
      if why then return why, due end
    end
    if model.memory > most_memory then return Status.MEMORY, later.memory(model.memory, most_memory, model.fall) end
    local rank, fleet_known = class.rank, model.rate > 0
    if model.depths[rank] >= model.limit then
      return Status.QUEUE_FULL, fleet_known and later.full(model, rule, rank, model.limit) or LATER_MS
    end
    if form == 'off' or (not fleet_known and form == 'drain') then return nil, due end
    local room = room_of(model, rule, rank, class.threshold, queue_limit)
    if model.waiting > room and class.threshold >= 0 then
      return Status.PRESSURE, fleet_known and later.pressure(model, rank, room) or LATER_MS
    end
    if class.quota > 0 and model.waiting + class.own > room then
      return Status.SHARE, fleet_known and later.share(model, rank, room, class.own) or LATER_MS
    end
    local wait = fleet_known and wait_ms(model, rule, rank, class.by_preference, class.by_age) or 0
    if wait > 0 and (wait > queue_limit or wait + batch_ms(model) > deadline) then
      return Status.DEADLINE, later.hopeless(model, rule, rank, deadline, queue_limit)
    end
    return nil, due
  end

  local function refuse(class, why, detail)
    if why == Status.ANSWERED or why == Status.JOINED then
      statuses[#statuses + 1] = why
      return
    end
    local left, whole = 0, 0
    if class.quota > 0 then
      left = gcra_remaining(tat_of(class), clock_us, class.interval, class.burst)
      whole = math.max(0, gcra_known(tat_of(class), clock_us, class.interval, class.burst) - clock_us) / 1000
    end
    statuses[#statuses + 1] = why
    if why ~= Status.REPEATED then detail = string.format('%.0f', math.ceil(detail)) end
    details[#details + 1] = string.format('%s;%d;%.0f', detail, left, math.ceil(whole))
  end

  return over_rate, refusal, refuse
end

local function id_of(rest)
  return string.sub(rest, ID - PREFIX, string.find(rest, '"', 1, true) - 1)
end

local function track(rest, deadline, request_key)
  local id = id_of(rest)
  local keep = deadline + field(rest, TTL - PREFIX, 9)
  redis.call('SET', 'celery-task-meta-' .. id, state_of(id, 'PENDING'), 'PX', keep)
  if request_key ~= '' then redis.call('SET', request_key, id, 'PX', keep) end
end

local over_rate, refusal, refuse

-- For a flush in which some requests may be repeats.
local marks, answers, lasts, names, lead, known_before, conclude
if any_once then
  local prefixes = #KEYS - DedupKeys.width
  names = {
    asked = KEYS[prefixes + DedupKeys.asked] .. ':', joined = KEYS[prefixes + DedupKeys.joined] .. ':',
    cached = KEYS[prefixes + DedupKeys.cached] .. ':',
  }
  marks, answers = read_questions(at, classes, names)
  lasts = {}
  lead = function(question, class, deadline, rest)
    if class.marked ~= class.head then
      class.marked = class.head
      class.mark = (class.rank - 1) .. '0' .. string.sub(class.head, DEADLINE, DEADLINE + 12)
        .. string.sub(class.head, ENQUEUED, ENQUEUED + 12)
    end
    marks[question], lasts[question] = class.mark .. id_of(rest), deadline + GRACE_MS
  end
end

local function acquaintance()
  if not refusal then over_rate, refusal, refuse = judges() end
  return recognition({
    over_rate = over_rate, track = track, lead = lead, id_of = id_of, tats = tats, spent = spent, names = names,
    now = now, most_memory = most_memory, prefix = PREFIX, channel = ARGV.channel, marks = marks, answers = answers,
    lasts = lasts,
    refused = function(class, deadline, queue_limit)
      if class.quota > 0 or class.model.waiting > class.calm then return refusal(class, deadline, queue_limit) end
    end,
  })
end

local function judge_one_by_one(class, deadline, limit, first, last, words, head)
  local model, fresh, rank = class.model, class.fresh, class.rank
  local depths = model.depths
  for i = first, last, words do
    local rest = ARGV[i + words - 1]
    local why, later
    local question = class.once and ARGV[i]
    if question and (marks[question] ~= false or answers[question]) then
      if not known_before then known_before, conclude = acquaintance() end
      why, later = known_before(class, deadline, limit, i, head)
      question = false
    else
      local calm = model.waiting + class.own <= class.calm
      if calm and class.quota > 0 then
        later = gcra_take(tat_of(class), clock_us, class.interval, class.burst)
        calm = later
      end
      if not calm then
        if not refusal then over_rate, refusal, refuse = judges() end
        why, later = refusal(class, deadline, limit)
      end
    end
    if why then
      refuse(class, why, later)
    else
      if string.byte(rest, 1) == 49 then track(rest, deadline, (question or words == 1) and '' or ARGV[i]) end
      if question then lead(question, class, deadline, rest) end
      fresh[#fresh + 1] = head .. rest
      depths[rank] = depths[rank] + 1
      model.waiting = model.waiting + 1
      if class.quota > 0 then
        class.own, class.added = class.own + 1, class.added + 1
        tats[class.state], spent[class.state] = later, true
      end
      statuses[#statuses + 1] = Status.QUEUED
    end
  end
end

-- Admit a whole run at once, if no request must be judged by itself: the common case. Possible repeats must be.
local function all_are_let_in(class, count)
  if class.once then return false end
  -- With a key each admitted request counts twice for the next: among all, and among its own.
  local each = class.quota > 0 and 2 or 1
  if class.model.waiting + class.own + (count - 1) * each > class.calm then return false end
  if class.quota > 0 then
    local due = gcra_take(tat_of(class), clock_us, class.interval, class.burst, count)
    if not due then return false end
    class.own, class.added = class.own + count, class.added + count
    tats[class.state], spent[class.state] = due, true
  end
  return true
end

while at < #ARGV do
  local class = classes[tonumber(ARGV[at + RunRow.number])]
  local words, count = tonumber(ARGV[at + RunRow.words]), tonumber(ARGV[at + RunRow.messages])
  local deadline, limit = tonumber(ARGV[at + RunRow.deadline_ms]), tonumber(ARGV[at + RunRow.queue_limit_ms])
  local first = at + RunRow.width + 1
  local after = first + words * count
  local model = class.model
  local head = string.format('%s%013d;%013d;%013d;00;0;', HEAD, now + deadline, now + limit, now)
  if class.head ~= head then
    class.head, class.calm = head, calm_of(class, deadline, limit)
  end
  local fresh, depths, rank = class.fresh, model.depths, class.rank
  if all_are_let_in(class, count) then
    local n = #fresh
    for i = first, after - 1, words do
      local rest = ARGV[i + words - 1]
      if string.byte(rest, 1) == 49 then track(rest, deadline, words == 1 and '' or ARGV[i]) end
      n = n + 1
      fresh[n] = head .. rest
    end
    depths[rank], model.waiting = depths[rank] + count, model.waiting + count
    statuses[#statuses + 1] = string.rep(Status.QUEUED, count)
  else
    judge_one_by_one(class, deadline, limit, first, after - 1, words, head)
  end
  at = after - 1
end

local counted = KEYS.arrivals .. string.format('%.0f', math.floor(now / 1000))
for m = 1, models_count do
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
for c = 1, classes_count do
  local class = classes[c]
  if class.added > 0 then
    local held = KEYS[class.model.tiers_at + TierKeys.width * class.rank + TierKeys.held]
    redis.call('HINCRBY', held, class.tag, class.added)
  end
end
for state in pairs(spent) do
  local tat = tats[state]
  redis.call('SET', state, string.format('%.0f', tat), 'PX', math.max(1, math.ceil((tat - clock_us) / 1000)))
end

if lasts then
  -- Only after all the requests that the marks name are queued.
  local last, ends
  for question, keep in pairs(lasts) do
    if keep ~= last then last, ends = keep, string.format('%.0f', now + keep) end
    redis.call('SET', names.asked .. question, marks[question], 'PXAT', ends)
  end
end
if conclude then conclude() end

local said = table.concat(statuses)
if #details > 0 then said = said .. '\n' .. table.concat(details, ',') end
redis.call('SET', KEYS.flush, said, 'PX', 30000)
return said
