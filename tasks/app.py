"""The Celery application that everybody but the batching worker uses: the ops worker, Flower, scripts.

celery -A tasks.app worker -Q bunch.ops        celery -A tasks.app flower        celery -A tasks.app inspect stats
"""

from __future__ import annotations

from celery import Celery

from config.celery import celery_config
from config.settings import Settings, load_settings


def make_app(settings: Settings, *, result_backend: str = "") -> Celery:
    """A Celery application named `bunch`, with the plain tasks of `tasks.ops` registered."""
    app = Celery("bunch", set_as_current=False)
    app.conf.update(celery_config(settings, result_backend=result_backend))
    app.conf.imports = ("tasks.ops",)
    return app


def __getattr__(name: str) -> Celery:
    """`app` is made when somebody asks for it, not at import: the settings are read once, and only if needed."""
    if name in {"app", "celery"}:
        app = globals()["app"] = make_app(load_settings())
        return app
    raise AttributeError(name)
