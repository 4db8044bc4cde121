"""What all of our Celery workers have in common: own queues, `revoke`, the list of control commands."""
