"""Records of requests and batches: metrics, batch log, history, slow log, objectives."""
