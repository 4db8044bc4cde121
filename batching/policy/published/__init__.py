"""Policies of published designs, kept for comparison with the default."""
