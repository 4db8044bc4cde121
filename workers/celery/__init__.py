"""The worker's side towards Celery: control commands, canvas, STARTED, result backend, pools."""
