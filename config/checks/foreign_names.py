"""Environment variables that are not ours: those that Kubernetes makes, and those that would change our libraries."""

from __future__ import annotations

import re

PREFIX = "BUNCH_"
"""Prefix of the environment variables of our own settings."""

# The variables that Kubernetes sets in each container for a Service named `bunch` or `bunch-…` in its namespace:
# kubelet's `envvars.FromServices`, and Docker's links before it.
_BY_NAME = re.compile(r"BUNCH_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)

# Bunch is configured by its own settings, so variables of other programs must not change the libraries that it uses.
# These are never passed on:
_NEVER = re.compile(r"CELERY\w*|FLOWER_\w*|GUNICORN_\w*|C_FORCE_ROOT|FORKED_BY_MULTIPROCESSING")
# Kept from our own processes, but passed to executors: a model may need them.
_STEERING = re.compile(
    "|".join(  # noqa: FLY002 - a line for each program
        (
            # `celery.bin.celery` also reads its options from these, the broker among them.
            r"APP|BROKER_URL|RESULT_BACKEND|LOADER|CONFIG_MODULE|SKIP_CHECKS",
            r"C_(BENCH\w*|FAKEFORK|IMPDEBUG|REMDEBUG|STRICT_APP|WARN_APP|WNOCONF)|WORKER_LOGLEVEL|REMAP_SIGTERM",
            r"AUTOSCALE_KEEPALIVE|TIMER_DEBUG|USE_FAST_LOCALS|NOSETPS|EVENTLET_\w*|KOMBU_\w*|PICKLE_PROTOCOL",
            r"DISABLE_TRACEBACKS|MP_LOG|MP_MAIN_FILE|_MP_FORK_\w*|MULTIPROCESSING_FORKING_DISABLE",
            # Celery loads a Django project when this names one.
            r"DJANGO_SETTINGS_MODULE|DJANGO_PROJECT_DIR",
            r"WEB_CONCURRENCY|FORWARDED_ALLOW_IPS|SCRIPT_NAME|SENDFILE|PORT|LISTEN_FDS|LISTEN_PID|NOTIFY_SOCKET",
            r"FLASK_\w*|WERKZEUG_\w*|GEVENT_\w*",
            # prometheus_client would write files instead of counting.
            r"PROMETHEUS_\w*|prometheus_multiproc_dir",
            r"OTEL_\w*",
        )
    )
)


def made_by_kubernetes(name: str, value: str) -> bool:
    """Return whether Kubernetes made this variable from the name of a Service, rather than a person.

    `BUNCH_HTTP_PORT` may be either: of a Service `bunch-http` it is a URL, which no port is.
    """
    return bool(_BY_NAME.fullmatch(name) or ("_PORT" in name and _LINK.match(value)))


def steers(name: str) -> bool:
    """Return whether a variable of this name changes the behaviour of a library that we use."""
    return bool(_NEVER.fullmatch(name) or _STEERING.fullmatch(name))


def is_for_models_only(name: str) -> bool:
    """Return whether it changes a library, and may still be meant for a model."""
    return bool(_STEERING.fullmatch(name)) and not _NEVER.fullmatch(name)
