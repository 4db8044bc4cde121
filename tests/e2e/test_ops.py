"""The operations page as HTTP: its parts, its events, its actions. How it looks: tests/page."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client import Api
from tests.e2e.stack import PATIENCE_S
from tests.waiting import wait_until
from webapp.ops.views import STATIC


def test_the_page_and_all_its_parts_come_from_here(api: Api) -> None:
    page = api.get("/ops")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    parts = {*re.findall(rb'(?:href|src)="(/ops/static/[^"]+)"', page.body)}
    assert parts
    for part in {part.decode() for part in parts} | {f"/ops/static/{path.name}" for path in STATIC.iterdir()}:
        answer = api.get(part)
        assert answer.status == 200
        assert api.get(part, If_None_Match=answer.headers["etag"]).status == 304
        # A namespace is a name, not an address.
        assert b"//" not in re.sub(
            rb"http://www\.w3\.org/2000/svg|^ *//.*$|[^:]// .*$", b"", answer.body, flags=re.MULTILINE
        )


def test_there_is_nothing_beside_its_parts(api: Api) -> None:
    for path in ("/ops/static/nothing.js", "/ops/static/..%2fviews.py", "/ops/static/../views.py"):
        assert api.get(path).status == 404


@contextlib.contextmanager
def events(api: Api) -> Iterator[Iterator[tuple[str, Any]]]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", api.port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/ops/events")
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("content-type", "").startswith("text/event-stream")

        def read() -> Iterator[tuple[str, Any]]:
            name = ""
            while line := response.readline():
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

        yield read()


def test_events_begin_with_the_last_hour_and_go_on_with_how_things_stand(well: Api) -> None:
    well.all(range(5))
    with events(well) as stream:
        name, hello = next(stream)
        assert name == "hello"
        assert hello["tiers"] == ["enterprise", "paid", "free"]
        assert all(point["at"] for point in hello["points"])
        first, second = next(stream), next(stream)
    assert (first[0], second[0]) == ("now", "now")
    now = second[1]
    assert now["at"] > first[1]["at"]
    assert now["status"] == "healthy", now["findings"]
    assert {row["model"] for row in now["queues"]} == set(hello["models"])
    assert all(worker["healthy"] for worker in now["workers"])
    assert now["payloads"].keys() == {"live", "kept", "shared"}
    assert now["point"]["requests"]["paid"]["OK"] >= 5


def test_points_come_by_themselves(api: Api) -> None:
    def points() -> int:
        with events(api) as stream:
            return len(next(stream)[1]["points"])

    before = points()
    wait_until(lambda: points() > before, what="another point")


def test_a_slow_request_says_where_its_time_went(api: Api) -> None:
    # Together they take longer than the second that is their tier's objective.
    answers = api.all([{"sleep": 0.3}] * 4, "quartet")
    ids = {answer.json["task_id"] for answer in answers}

    def rows() -> list[Any]:
        with events(api) as stream:
            now = next(document for name, document in stream if name == "now")
        return [row for row in now["slow"] if row["task_id"] in ids]

    wait_until(lambda: len(rows()) == len(ids), what="all of them are shown")
    for row in rows():
        assert (row["code"], row["model"], row["tier"], row["attempt"]) == ("OK", "quartet", "paid", 1)
        assert row["compute_ms"] >= 300 * row["batch_size"]
        assert row["total_ms"] >= row["queue_ms"] + row["compute_ms"]
        about = api.get(f"/ops/explain/{row['task_id']}").json
        assert about["batch"]["id"] == row["batch_id"]
        assert {each["stage"]: each["ms"] for each in about["stages"]}["compute"] == pytest.approx(row["compute_ms"])


def act(api: Api, name: str, document: object, **headers: str) -> Any:
    return api.post(f"/ops/actions/{name}", document, **headers)


def test_an_action_says_what_it_will_do_and_does_it_only_when_told(api: Api) -> None:
    task_id = api.later({"fail": "no"}, "moody")
    assert api.outcome(task_id)["status"] == "FAILURE"

    said = act(api, "drop", {"arguments": {"ids": [task_id]}})
    again = act(api, "drop", {"arguments": {"ids": [task_id]}})
    done = act(api, "drop", {"arguments": {"ids": [task_id]}, "confirm": True})
    gone = act(api, "drop", {"arguments": {"ids": [task_id]}, "confirm": True})

    assert said.json["will"] == again.json["will"]
    assert "1 dead letter will be deleted" in said.json["will"]
    assert done.json["done"] == "1 dead letter deleted"
    assert "0 dead letters deleted; 1 skipped" in gone.json["done"]


def test_a_replayed_request_runs_again(api: Api) -> None:
    task_id = api.later({"fail": "no"}, "moody")
    assert api.outcome(task_id)["status"] == "FAILURE"
    done = act(api, "replay", {"arguments": {"ids": [task_id]}, "confirm": True})
    assert done.json["done"] == "1 dead letter queued again"
    assert api.outcome(task_id)["status"] == "FAILURE"
    act(api, "drop", {"arguments": {"ids": "all"}, "confirm": True})


@pytest.mark.parametrize(
    ("name", "document", "headers", "code"),
    [
        ("nothing", {}, {}, "NOT_FOUND"),
        ("drop", {}, {}, "INVALID_INPUT"),
        ("drop", {"arguments": {"ids": [1]}}, {}, "INVALID_INPUT"),
        ("drop", {"ids": "all"}, {}, "INVALID_INPUT"),
        ("drop", {"arguments": {"ids": "all"}}, {"Sec_Fetch_Site": "cross-site"}, "FORBIDDEN"),
        ("drop", {"arguments": {"ids": "all"}}, {"Content_Type": "text/plain"}, "UNSUPPORTED_MEDIA_TYPE"),
    ],
)
def test_other_sites_and_nonsense_are_refused(
    api: Api, name: str, document: object, headers: dict[str, str], code: str
) -> None:
    assert act(api, name, document, **headers).error == code
