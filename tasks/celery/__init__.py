"""Celery features that all of our workers share: own queues, `revoke`, the list of control commands."""
