"""Fuzzing of every format in which bytes come in: `python -m tests.fuzz --seconds 60`."""
