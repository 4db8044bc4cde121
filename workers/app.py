"""The composition root of the batching worker: `celery -A workers.app worker --pool threads`."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.worker import state as worker_state

from batching.claim.bootstep import BatchingStep
from config.celery import backend_url, model_queues
from config.installation import PROGRAM
from config.keys import TASK_NAME
from config.model_files.pools import assignment
from config.settings import Settings, load_settings
from tasks.app import make_app, use_our_logging
from tasks.celery.active import make_walkable
from tasks.celery.own_queues import OwnQueuesStep
from tasks.celery.revoke import RevokeStep
from tasks.protocol.disclosure import Disclosure
from workers.celery import control, guarded_backend, pools
from workers.celery.canvas import CanvasFollowUp
from workers.runner import WorkerRunner

CELERY_QUEUE = "celery"


def make_worker_app(settings: Settings) -> Celery:
    """A Celery app whose worker claims batches of the models that `settings` give it."""
    app = make_app(settings, result_backend=backend_url(settings.home_url, guarded_backend.BACKEND))
    app.conf.task_queues = queues = model_queues(assignment(settings).models)
    app.bunch_queues = {each.name for each in queues}
    # The queue of callbacks that name none: Celery's default, where their sender has its own workers.
    app.conf.task_default_queue = CELERY_QUEUE
    app.steps["consumer"].add(BatchingStep)
    app.bunch_settings = settings
    app.steps["worker"].update({OwnQueuesStep, RevokeStep})
    pools.require_threads()
    make_walkable(worker_state.active_requests)
    app.steps["worker"].add(control.NoEffectStep)
    app.bunch_runner = WorkerRunner(settings, CanvasFollowUp(app, Disclosure(settings.error_detail, settings.auth)))
    app.task(name=TASK_NAME, ignore_result=False, shared=False)(_never_called)
    return app


def _never_called(input: Any, parameters: dict[str, Any] | None = None) -> Any:
    """`bunch.infer`, registered so that `inspect registered` and Flower name it.

    The bootstep claims its messages before any pool gets them; a worker without the bootstep has no model.
    """
    raise RuntimeError(f"bunch.infer runs in batches; start the worker with `{PROGRAM} worker`")


def __getattr__(name: str) -> Celery:
    if name in {"app", "celery"}:
        settings = load_settings()
        use_our_logging(settings)
        app = globals()["app"] = make_worker_app(settings)
        return app
    raise AttributeError(name)
