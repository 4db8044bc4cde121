"""The core: policies, claiming and settling batches, and the bootstep that runs them inside a Celery worker."""
