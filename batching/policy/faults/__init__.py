"""Rules for failures: retries, the circuit breaker, and the search for the request that kills executors."""
