"""Findings from a failed call: the exception's text, a device fault, a poisoned process."""
