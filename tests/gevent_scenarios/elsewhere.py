"""Scenarios with a plain Celery at the other end; the tests start it, or are it."""

from __future__ import annotations

from functools import partial

from tasks.errors import InferenceFailed
from tests.gevent_scenarios.frontend_fixture import (
    LONG_S,
    NOBODY,
    SERVED,
    FrontendFixture,
    error_of,
    found_by_the_last_look,
)


def submit_and_print_the_ids(frontend: FrontendFixture) -> None:
    values = ["é", {"do": "reject", "text": "not this"}]
    print(*(frontend.client.receipt(frontend.submit(each, SERVED, waits=False)) for each in values))


def a_plain_worker_answers(frontend: FrontendFixture) -> None:
    # It tells nobody but Celery's own readers, so whoever waits here finds the result by the last look.
    found = partial(found_by_the_last_look, frontend, model=NOBODY, parameters=b'{"k":1}')
    assert found("é") == {"plain": "é", "parameters": {"k": 1}}
    error = error_of(partial(found, "break"))
    assert type(error) is InferenceFailed
    assert str(error) == "broken"
    # Whoever watches the id is told by Celery's message.
    task_id = frontend.client.receipt(frontend.submit("x", NOBODY, waits=False))
    reply = frontend.client.result(task_id, wait_s=LONG_S)
    assert reply is not None
    assert reply.status == "SUCCESS"
