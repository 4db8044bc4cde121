"""`bench`: the load generator and its measurements."""
