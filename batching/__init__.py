"""The core: policies, claiming and settling of batches, and the bootstep that runs them inside a Celery worker."""
