"""An HTTP API that is a model goes on with its callers' traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from batching.request import Done, Work
from config.settings import ModelSettings
from tasks.protocol import traceparent
from tests.integration.test_fallback import Api
from workers.executor.process_executor import ProcessExecutor

FIRST, SECOND = (traceparent.make(number, 7) for number in (1, 2))
UNSAMPLED = traceparent.make(3, 7)[:-1] + "0"


@pytest.fixture
def upstream() -> Iterator[Api]:
    api = Api()
    api.start()
    yield api
    api.stop()


@pytest.fixture
def executor(upstream: Api) -> Iterator[ProcessExecutor]:
    made = ProcessExecutor(ModelSettings(name="m", source=upstream.url, cache=False, timeout_ms=60_000), 0)
    made.start()
    try:
        assert made.wait_ready(60), made.error
        yield made
    finally:
        made.stop(1.0)


@pytest.mark.parametrize(
    ("traceparents", "sent"),
    [
        ([FIRST], FIRST),
        (["", FIRST, SECOND], FIRST),
        ([UNSAMPLED, "", SECOND], SECOND),
        ([UNSAMPLED, ""], UNSAMPLED),
        (["", ""], None),
        ([], None),
    ],
    ids=["one", "first", "recorded", "not recorded", "none", "unknown"],
)
def test_a_call_is_part_of_one_of_its_requests_traces(
    executor: ProcessExecutor, upstream: Api, traceparents: Sequence[str], sent: str | None
) -> None:
    count = max(1, len(traceparents))
    executor.send(Work("b", [b"%d" % n for n in range(count)], [b"{}"] * count, traceparents=traceparents))
    assert isinstance(executor.receive(60), Done)
    assert upstream.traces == [sent]


def test_what_is_asked_again_in_parts_goes_on_with_the_traces_of_each_part(
    executor: ProcessExecutor, upstream: Api
) -> None:
    work = Work("b", [b'{"status":400}', b"1"], [b"{}"] * 2, traceparents=[FIRST, SECOND])
    executor.send(work)
    assert isinstance(executor.receive(60), Done)
    assert upstream.traces == [FIRST, FIRST, SECOND]
