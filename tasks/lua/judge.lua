-- Judges the requests of a flush: all of a run at once, or one by one.
--
-- `flush` is what they share: now and clock_us (ms and µs), form, rule, most_memory, channel, prefix (how much of its
-- message a request lacks in front), classes, runs, statuses and details (the answer), and the states of quotas: tats,
-- and which of them are spent.

-- The state of a quota, shared by a caller's models and tiers.
local function tat_of(flush, class)
  local tat = flush.tats[class.state]
  if not tat then
    tat = tonumber(redis.call('GET', class.state) or 0)
    flush.tats[class.state] = tat
  end
  return tat
end

-- How many requests may wait (plus those of its own key) so that no request of this class is refused, whatever waits:
-- the common case, in which a request costs one comparison.
local function calm_of(flush, class, deadline, queue_limit)
  local model, form = class.model, flush.form
  if model.memory > flush.most_memory then return -1 end
  local calm = model.limit - 1
  if form == 'off' or (model.rate <= 0 and form == 'drain') then return calm end
  calm = math.min(calm, room_of(model, flush.rule, class.rank, class.threshold, queue_limit))
  if model.rate <= 0 then return calm end
  return math.min(calm, math.min(queue_limit, deadline - model.full_ms) / class.by_preference)
end

-- Admit a whole run at once, if no request must be judged by itself: the common case. Possible repeats must be.
local function all_are_let_in(flush, class, count)
  if class.once then return false end
  -- With a key each admitted request counts twice for the next: among all, and among its own.
  local each = class.quota > 0 and 2 or 1
  if class.model.waiting + class.own + (count - 1) * each > class.calm then return false end
  if class.quota > 0 then
    local due = gcra_take(tat_of(flush, class), flush.clock_us, class.interval, class.burst, count)
    if not due then return false end
    class.own, class.added = class.own + count, class.added + count
    flush.tats[class.state], flush.spent[class.state] = due, true
  end
  return true
end

local function id_of(flush, rest)
  return string.sub(rest, ID - flush.prefix, string.find(rest, '"', 1, true) - 1)
end

local function track(flush, rest, deadline, request_key)
  local id = id_of(flush, rest)
  local keep = deadline + field(rest, TTL - flush.prefix, 9)
  redis.call('SET', result_key(id), state_of(id, 'PENDING'), 'PX', keep)
  if request_key ~= '' then redis.call('SET', request_key, id, 'PX', keep) end
end

-- Returns the function that judges a run one by one. It is made for the first run that is not obviously admitted, which
-- is number `r` and begins at `first_word`: the common case must not pay for these functions.
local function judging(flush, r, first_word)
  local LATER_MS = 1000
  local form, rule, most_memory, clock_us = flush.form, flush.rule, flush.most_memory, flush.clock_us
  local statuses, details, tats, spent = flush.statuses, flush.details, flush.tats, flush.spent
  -- Without thresholds the capacity is not known, and no time can be predicted.
  local later

  local function over_rate(class)
    if class.quota == 0 then return nil end
    local due, early = gcra_take(tat_of(flush, class), clock_us, class.interval, class.burst)
    if not due then return Status.RATE, early / 1000 end
    return nil, due
  end

  -- Why one more request of this class is refused, and when to retry; nil if it is admitted.
  local function refusal(class, deadline, queue_limit)
    later = later or (form ~= 'off' and timetable())
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
      local tat = tat_of(flush, class)
      left = gcra_remaining(tat, clock_us, class.interval, class.burst)
      whole = math.max(0, gcra_known(tat, clock_us, class.interval, class.burst) - clock_us) / 1000
    end
    statuses[#statuses + 1] = why
    if why ~= Status.REPEATED then detail = string.format('%.0f', math.ceil(detail)) end
    details[#details + 1] = string.format('%s;%d;%.0f', detail, left, math.ceil(whole))
  end

  -- For a flush in which some requests may be repeats.
  local marks, answers, known_before
  if flush.any_once then
    read_questions(flush, r, first_word)
    marks, answers = flush.marks, flush.answers
    flush.over_rate, flush.track, flush.id_of = over_rate, track, id_of
    function flush.refused(class, deadline, queue_limit)
      if class.quota > 0 or class.model.waiting > class.calm then return refusal(class, deadline, queue_limit) end
    end
  end

  return function(class, deadline, limit, first, last, words, head)
    local model, fresh, rank = class.model, class.fresh, class.rank
    local depths = model.depths
    for i = first, last, words do
      local rest = ARGV[i + words - 1]
      local why, detail
      local question = class.once and ARGV[i]
      if question and (marks[question] ~= false or answers[question]) then
        known_before = known_before or recognition(flush)
        why, detail = known_before(class, deadline, limit, i, head)
        question = false
      else
        local calm = model.waiting + class.own <= class.calm
        if calm and class.quota > 0 then
          detail = gcra_take(tat_of(flush, class), clock_us, class.interval, class.burst)
          calm = detail
        end
        if not calm then why, detail = refusal(class, deadline, limit) end
      end
      if why then
        refuse(class, why, detail)
      else
        if string.byte(rest, 1) == 49 then
          track(flush, rest, deadline, (question or words == 1) and '' or ARGV[i])
        end
        if question then flush.lead(question, class, deadline, id_of(flush, rest)) end
        fresh[#fresh + 1] = head .. rest
        depths[rank] = depths[rank] + 1
        model.waiting = model.waiting + 1
        if class.quota > 0 then
          class.own, class.added = class.own + 1, class.added + 1
          tats[class.state], spent[class.state] = detail, true
        end
        statuses[#statuses + 1] = Status.QUEUED
      end
    end
  end
end
