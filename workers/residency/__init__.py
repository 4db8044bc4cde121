"""Models that are loaded on demand: what is in memory follows `batching.policy.residency`."""
