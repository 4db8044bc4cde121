"""Commands that calculate: policies in virtual time, capacity, tuning."""
