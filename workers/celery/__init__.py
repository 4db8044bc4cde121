"""The worker as Celery sees it: control commands, canvas, STARTED, result backend, pools."""
