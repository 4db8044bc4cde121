-- POSTs distinct inputs in a system's own shape; prints the summary as one JSON line.
--   wrk … -s infer.lua URL -- PREFIX SUFFIX SEED BYTES [CREDENTIAL]
-- A body is PREFIX .. input .. SUFFIX; the input has BYTES, or as many as it needs to be distinct. The seed differs
-- from run to run, so that no cache ever helps.

local threads = 0

function setup(thread)
  thread:set("thread_id", threads)
  threads = threads + 1
end

function init(args)
  local prefix, suffix, seed = args[1], args[2], args[3]
  before = prefix .. "sentence " .. seed .. "-" .. thread_id .. "-"
  local most = tonumber(args[4]) - (#before - #prefix) - 9 - #" of the benchmark"
  after = string.rep("x", math.max(0, most)) .. " of the benchmark" .. suffix
  -- Counted with a fixed width, so that Content-Length is the same for every request and the head can be built once.
  local length = #before + 9 + #after
  local credential = args[5] and ("\r\nAuthorization: Bearer " .. args[5]) or ""
  head = "POST " .. wrk.path .. " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port .. credential
    .. "\r\nContent-Type: application/json\r\nContent-Length: " .. length .. "\r\n\r\n" .. before
  counter = 0
end

function request()
  counter = counter + 1
  return head .. string.format("%09d", counter) .. after
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"duration_us":%d,"requests":%d,"p50_us":%d,"p99_us":%d,"max_us":%d,'
      .. '"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}\n',
    summary.duration, summary.requests, latency:percentile(50), latency:percentile(99), latency.max,
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
