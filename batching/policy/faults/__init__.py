"""What follows a failure: a retry, an open breaker, the search for the request that kills executors."""
