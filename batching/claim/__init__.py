"""From queue to outcome: the claim loop of an executor, what it claims from, and what settles a batch."""
