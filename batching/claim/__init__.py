"""The path from queue to outcome: the claim loop of an executor, the store that it claims from, and the settler."""
