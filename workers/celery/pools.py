"""Which of Celery's pools a batching worker may run on.

Batches never reach the pool: only Celery's own tasks do. But the pool decides what the process is. `prefork` forks it,
with the threads of the claim loops and their locks in whatever state they are; `gevent` and `eventlet` replace threads
and sockets under their hands, if they come early enough, and hang the worker if they do not (celery/celery#8168).
"""

from __future__ import annotations

from typing import Any

from celery import signals

ALLOWED = ("threads", "solo")
_MODULES = ("celery.concurrency.thread", "celery.concurrency.solo")


def require_threads() -> None:
    """From now on a worker of this process that is started on another pool ends at once, and says why."""
    signals.worker_init.connect(_check, weak=False, dispatch_uid="bunch.pools")


def _check(sender: Any = None, **_more: Any) -> None:
    # A name, or what `celery.concurrency.get_implementation` has made of it.
    pool = getattr(sender, "pool_cls", None)
    name = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    if name not in {*ALLOWED, *_MODULES}:
        # An exception would be logged by the signal, and the worker would go on.
        raise SystemExit(
            f"a batching worker runs on --pool={' or --pool='.join(ALLOWED)}, not {name.rpartition('.')[2]}: "
            "its batches run in processes of their own"
        )
