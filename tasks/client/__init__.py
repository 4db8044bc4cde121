"""The client of a frontend process: submits requests, waits for answers, cancels."""
