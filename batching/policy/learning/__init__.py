"""Measurements of the claim loop: arrivals, the time of a batch, throughput by size."""
