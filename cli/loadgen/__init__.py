"""`bench`: the load generator and what it measures."""
