"""Push: the result of an asynchronous request is POSTed to its `callback_url`.

frontend ──owe.lua──▶ bunch:callbacks ──due.lua──▶ sender (ops worker) ──POST, signed──▶ receiver
   └─ the outcome is there: due now ─▶ │                    └─ not taken: later, for an hour; then a dead letter
"""
