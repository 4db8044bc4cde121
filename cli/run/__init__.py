"""Commands that start, check and watch the processes of one machine."""
