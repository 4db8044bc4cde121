"""Celery's settings, the environment of child processes, and logging."""

from __future__ import annotations

import json
import logging
import logging.config
import os

import pytest
from celery.app.backends import by_url

from bunch.celery_backend import BunchBackend
from config.celery import backend_url, celery_config, model_queues
from config.environ import ROOT, child_environment
from config.keys import Shard
from config.logging import JsonFormatter, logging_config
from config.settings import ModelSettings, Settings
from tasks.app import make_app

URLS = ["redis://:secret@host:6380/3", "rediss://host/0", "unix:///run/r.sock?db=2", "redis+socket:///run/r.sock"]


@pytest.mark.parametrize("url", URLS)
def test_the_frontends_backend_is_chosen_by_its_url(url: str) -> None:
    backend, rest = by_url(backend_url(url, "bunch.celery_backend:BunchBackend"))
    assert backend is BunchBackend
    assert rest.startswith(("redis://", "rediss://", "socket://"))


def test_an_app_of_the_frontend_has_that_backend() -> None:
    settings = Settings(redis_url="unix:///run/r.sock?db=2")
    app = make_app(settings, result_backend=backend_url(settings.redis_url, "bunch.celery_backend:BunchBackend"))
    assert isinstance(app.backend, BunchBackend)
    assert app.backend.connparams["path"] == "/run/r.sock"
    assert app.backend.connparams["db"] in {2, "2"}


def test_nothing_is_ever_unpickled() -> None:
    conf = celery_config(Settings(redis_url="redis://h"))
    assert conf["accept_content"] == ["json"]
    assert {conf["task_serializer"], conf["result_serializer"], conf["event_serializer"]} == {"json"}


def test_celerys_own_traffic_may_have_a_broker_of_its_own() -> None:
    conf = celery_config(Settings(redis_url="redis://data", broker_url="redis://control", result_ttl_ms=90_000))
    assert (conf["broker_url"], conf["result_backend"]) == ("redis://control", "redis://data")
    assert conf["result_expires"] == 90.0


def test_no_connection_waits_for_ever() -> None:
    conf = celery_config(Settings(redis_url="redis://h"))
    assert 0 < conf["broker_transport_options"]["socket_connect_timeout"] <= 5
    assert 0 < conf["broker_transport_options"]["socket_timeout"] <= 30
    assert 0 < conf["broker_pool_acquire_timeout"] <= 5


def test_every_tier_of_every_model_is_a_declared_queue() -> None:
    models = {name: ModelSettings(name=name, source="a:B") for name in ("a", "b")}
    queues = model_queues(models)
    assert [queue.name for queue in queues] == [*Shard().queues("a"), *Shard().queues("b")]
    assert {queue.exchange.name for queue in queues} == {""}
    assert all(queue.routing_key == queue.name for queue in queues)


def test_children_get_our_settings_over_what_they_inherit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNCH_HTTP_PORT", "1")
    monkeypatch.setenv("BUNCH_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("FLOWER_PORT", "7")
    monkeypatch.setenv("FLOWER_URL_PREFIX", "elsewhere")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere{os.pathsep}{ROOT}")
    environment = child_environment(
        "flower", {"http_port": 2, "log_level": None, "state_dir": ""}, {"FLOWER_PORT": "8"}, ("/models",)
    )
    assert environment["BUNCH_HTTP_PORT"] == "2"
    assert environment["BUNCH_LOG_LEVEL"] == "DEBUG"
    assert "BUNCH_STATE_DIR" not in environment
    # Another program's are none of Flower's business, and what we say is.
    assert environment["FLOWER_PORT"] == "8"
    assert "FLOWER_URL_PREFIX" not in environment
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/models", "/elsewhere"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logging_can_be_configured(log_format: str) -> None:
    given = logging_config(Settings(log_format=log_format, log_level="WARNING"))
    assert given["root"] == {"level": "WARNING", "handlers": ["stderr"]}
    logging.config.DictConfigurator(given).configure_formatter(dict(given["formatters"]["bunch"]))


def test_a_json_line_carries_what_was_passed_along() -> None:
    record = logging.makeLogRecord(
        {"name": "a.logger", "levelname": "ERROR", "msg": "it took %d ms", "args": (7,), "model": "m", "odd": object()}
    )
    fields = json.loads(JsonFormatter().format(record))
    assert fields["message"] == "it took 7 ms"
    assert (fields["level"], fields["logger"], fields["model"]) == ("ERROR", "a.logger", "m")
    assert "args" not in fields
    assert "object" in fields["odd"]


def test_a_json_line_carries_the_exception() -> None:
    try:
        raise ValueError("é\nsecond line")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "it broke", "exc_info": (type(error), error, error.__traceback__)})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: é\nsecond line" in json.loads(line)["exception"]
