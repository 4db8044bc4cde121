"""Observers of the claim loop: each writes what it is told in one of the forms of `tasks`."""
