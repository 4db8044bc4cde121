"""The Celery application for everything but the batching worker: the ops worker, Flower, scripts.

celery -A tasks.app worker -Q bunch.ops        celery -A tasks.app flower        celery -A tasks.app inspect stats
"""

from __future__ import annotations

import logging.config
import warnings

from celery import Celery
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.signals import setup_logging

from config.celery import celery_config
from config.keys import OPS_QUEUE
from config.logging import logging_config
from config.process.streams import keep_talking
from config.settings import Settings, load_settings
from tasks.celery.own_queues import OwnQueuesStep
from tasks.celery.revoke import RevokeStep
from tasks.ops.bootstep import PeriodicSyncStep
from tasks.ops.callback_step import CallbackStep
from tasks.ops.liveness_step import LivenessStep
from tasks.ops.no_op_commands import NoOpCommandsStep
from tasks.ops.presence_step import PresenceStep


def make_app(settings: Settings, *, result_backend: str = "") -> Celery:
    """Make a Celery application named `bunch`, with the plain tasks of `tasks.ops.plain_tasks` registered."""
    app = Celery("bunch", set_as_current=False)
    app.conf.update(celery_config(settings, result_backend=result_backend))
    app.conf.imports = ("tasks.ops.plain_tasks",)
    return app


def use_our_logging(settings: Settings) -> None:
    """Apply the settings' log level and format to a Celery process, in place of Celery's own set-up."""

    def configure(**_: object) -> None:
        logging.config.dictConfig(logging_config(settings))
        # Python's warnings, Celery's among them, would otherwise be lines in a format of their own.
        logging.captureWarnings(True)

    keep_talking()
    # Celery warns root about pickle, which is never accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # Celery warns at each lost connection about a default that will change in Celery 6.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    # At once, for what Celery logs before it sends its signal.
    configure()
    setup_logging.connect(configure, weak=False)


def __getattr__(name: str) -> Celery:
    """Make `app` on first access, not at import: the settings are read once, and only if needed."""
    if name in {"app", "celery"}:
        settings = load_settings()
        use_our_logging(settings)
        app = globals()["app"] = make_app(settings)
        app.bunch_settings = settings
        app.bunch_queues = {OPS_QUEUE}
        app.steps["worker"].update(
            {NoOpCommandsStep, PeriodicSyncStep, OwnQueuesStep, PresenceStep, LivenessStep, RevokeStep, CallbackStep}
        )
        return app
    raise AttributeError(name)
