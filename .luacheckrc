-- For .ci/luacheck.py, which assembles each script as the server gets it.
std = "lua51"
max_line_length = 120
read_globals = {"redis", "cjson", "cmsgpack", "struct", "bit", "KEYS"}
-- Written too: dedup.lua puts a request's own key where all of its keys stood.
globals = {"ARGV"}
-- Without thresholds submit.lua gets no parts that judge by them, and asks none of them.
files["**/submit-gcra-dedup_marks-dedup-judge.lua"] = {
  read_globals = {"batch_ms", "capacity_of", "drain_factors", "room_of", "timetable", "wait_ms"},
}
-- Its globals are how wrk calls a script, and what it keeps between two calls.
files["tests/benchmarks/wrk"] = {
  globals = {"setup", "init", "request", "done", "thread_id", "before", "after", "head", "counter", "wrk"},
}
