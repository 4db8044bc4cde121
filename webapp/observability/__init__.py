"""What a frontend process records of its requests: metrics, request log, ledger, traces, times."""
