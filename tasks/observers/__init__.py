"""Observers of the claim loop: each turns its reports into one of the formats of `tasks`."""
