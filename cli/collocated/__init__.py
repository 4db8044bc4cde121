"""Collocated mode: frontend, queues and executors in one process, and no Redis on a request's path."""
