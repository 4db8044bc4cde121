"""Celery's own settings, for the control plane. Nothing is pickled, and no wait is unbounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kombu.entity import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES

from config.keys import OPS_QUEUE, Shard
from config.redis_url import celery_url, sentinel_options, sentinels_of, tls_options
from config.settings import Settings

# kombu's and Celery's own, on connections that leave a primary which has been replaced (`config.sentinel`).
_SENTINEL_TRANSPORT = "tasks.celery.sentinel:PrimaryTransport"
_SENTINEL_BACKEND = "tasks.celery.sentinel:PrimaryBackend"


def backend_url(url: str, backend: str) -> str:
    """The result backend URL of a class of ours, as Celery splits it: `module:Class+scheme://…`."""
    return f"{backend}+{celery_url(url).removeprefix('redis+')}"


def celery_config(settings: Settings, *, result_backend: str = "") -> dict[str, Any]:
    """The settings for `app.conf.update`. `result_backend` replaces the plain Redis backend, as the frontend's router
    does.
    """
    if sentinels_of(settings.control_url):
        # Under kombu's own name, since Flower knows brokers by the scheme of their URL.
        TRANSPORT_ALIASES["sentinel"] = _SENTINEL_TRANSPORT
    transport = {
        # Under redis-py 8's default of 5 s for a read, kombu's blocking pop of 1 s is safe; opening is bounded too.
        "socket_connect_timeout": 2.0,
        "socket_timeout": 10.0,
        "socket_keepalive": True,
        "body_encoding": "utf-8",
        **sentinel_options(settings.control_url),
    }
    return {
        "broker_url": celery_url(settings.control_url),
        "broker_use_ssl": tls_options(settings.control_url),
        "result_backend": result_backend or _result_backend(settings.home_url),
        "result_backend_transport_options": sentinel_options(settings.home_url),
        "redis_backend_use_ssl": tls_options(settings.home_url),
        "result_expires": settings.result_ttl_s,
        # `app.backend` is thread-local: under gevent that is one backend, pool and subscription per greenlet.
        "result_backend_thread_safe": True,
        "broker_transport_options": transport,
        "broker_connection_retry_on_startup": True,
        # A worker should never give up during an outage; by default it does after a hundred tries.
        "broker_connection_max_retries": None,
        # kombu raises `channel_error` for errors that Redis reports about its own state (READONLY, UNBLOCKED, OOM,
        # MISCONF), and a consumer ends on it (`celery.worker.consumer.Consumer.start`). Such a state passes, as an
        # outage does.
        "broker_channel_error_retry": True,
        "broker_pool_limit": 10,
        "broker_pool_acquire_timeout": 2.0,
        "task_serializer": "json",
        "result_serializer": "json",
        "event_serializer": "json",
        "accept_content": ["json"],
        "task_default_queue": OPS_QUEUE,
        "task_create_missing_queues": True,
        "task_acks_late": True,
        "task_track_started": True,
        "worker_prefetch_multiplier": 1,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        "timezone": "UTC",
        "enable_utc": True,
    }


def _result_backend(url: str) -> str:
    return f"{_SENTINEL_BACKEND}+{celery_url(url)}" if sentinels_of(url) else celery_url(url)


def model_queues(models: Iterable[str], shard: Shard | None = None) -> list[Queue]:
    """The tier queues of `models`, declared, so that `inspect active_queues` and Flower show them."""
    keys = shard or Shard()
    return [
        # The empty exchange: routing key = queue, a single LPUSH, as any `send_task(queue=…)` does.
        Queue(name, Exchange(""), routing_key=name)  # type: ignore[no-untyped-call]
        for model in models
        for name in keys.queues(model)
    ]
