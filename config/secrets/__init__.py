"""Secrets: the settings that are secrets, how they are masked, and the files and keys that hold them."""
