"""The Celery pools that a batching worker may use.

Batches never reach the pool: only Celery's own tasks do. But the pool changes the process. `prefork` forks it, with the
threads of the claim loops and their locks in any state. `gevent` and `eventlet` replace threads and sockets if they are
imported early enough, and otherwise hang the worker (celery/celery#8168).
"""

from __future__ import annotations

from typing import Any

from celery import signals

ALLOWED = ("threads", "solo")
_MODULES = ("celery.concurrency.thread", "celery.concurrency.solo")


def require_threads() -> None:
    """Make a worker of this process that is started with another pool end at once, with an error."""
    signals.worker_init.connect(_check, weak=False, dispatch_uid="bunch.pools")


def _check(sender: Any = None, **_more: Any) -> None:
    # A name, or the class that `celery.concurrency.get_implementation` has made of it.
    pool = getattr(sender, "pool_cls", None)
    name = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    if name not in {*ALLOWED, *_MODULES}:
        # The signal would log an exception, and the worker would go on.
        raise SystemExit(
            f"a batching worker runs on --pool={' or --pool='.join(ALLOWED)}, not {name.rpartition('.')[2]}: "
            "its batches run in processes of their own"
        )
