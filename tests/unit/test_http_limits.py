"""Limits are checked where they are made."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from webapp.http.limits import ServerLimits


@pytest.mark.parametrize("name", [field.name for field in fields(ServerLimits)])
def test_below_zero_names_the_field(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        replace(ServerLimits(), **{name: -1})


@pytest.mark.parametrize("name", [field.name for field in fields(ServerLimits)])
def test_zero_only_where_it_means_something(name: str) -> None:
    if name in {"idle_time_s", "linger_s", "drain_idle_s"}:
        replace(ServerLimits(), **{name: 0})
        return
    with pytest.raises(ValueError, match=name):
        replace(ServerLimits(), **{name: 0})


def test_the_request_line_is_part_of_the_head() -> None:
    with pytest.raises(ValueError, match="header_bytes"):
        ServerLimits(request_line_bytes=1000, header_bytes=999)


def test_gunicorns_settings_rule_where_there_are_some() -> None:
    cfg = SimpleNamespace(limit_request_line=4094, limit_request_fields=50, keepalive=5)
    limits = ServerLimits(body_bytes=7).with_gunicorn(cfg)
    assert (limits.request_line_bytes, limits.header_count, limits.idle_time_s) == (4094, 50, 5.0)
    assert limits.body_bytes == 7
    cfg.limit_request_line = 0
    assert ServerLimits().with_gunicorn(cfg).request_line_bytes == 8192
