"""API keys, and the ledger of requests."""
