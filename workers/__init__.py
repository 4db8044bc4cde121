"""The worker process: composition root, executors (one child process per GPU), heartbeats, models."""
