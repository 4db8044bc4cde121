"""Records that a frontend process keeps of its requests: metrics, request log, ledger, traces, times."""
