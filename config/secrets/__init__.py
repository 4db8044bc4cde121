"""Secrets: which settings they are, how they are masked, the files and keys that hold them."""
