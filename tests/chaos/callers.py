"""A steady load of distinct requests from another thread; every answer is checked against its request."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from cli.loadgen.load import NO_ANSWER, Load, Run, _Connection
from tasks.protocol.ids import shard_of

# The error codes that the contract allows while things break.
HONEST = {
    "BACKEND_UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "INFERENCE_FAILED",
    "MODEL_UNAVAILABLE",
    "SERVICE_OVERLOADED",
    "SHUTTING_DOWN",
}
# Time beyond its deadline, for a machine with other work.
HUNG_AFTER_S = 3.0


def question(number: int) -> dict[str, Any]:
    """A request that differs for each number."""
    return {"number": number, "salt": hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()}


@dataclass(frozen=True, slots=True)
class Told:
    """One caller's answer. Times are `perf_counter`'s; `code` is `OK`, the contract's code, or `BROKEN`; `shard` is
    that of its task, None without shards or an output.
    """

    number: int
    asked_at: float
    told_at: float
    code: str
    attempt: int = 1
    shard: int | None = None

    @property
    def took_s(self) -> float:
        return self.told_at - self.asked_at


@dataclass(slots=True)
class _Answers(Run):
    """Checks each answer as it comes, instead of keeping it."""

    told: list[Told] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    began_at: float = 0.0

    def add(self, number: int, status: int, body: bytes, latency_s: float, finished_s: float, *more: object) -> None:
        code, attempt, shard = "BROKEN", 1, None
        if status != NO_ANSWER:
            document = json.loads(body)
            code = "OK" if status == 200 else document["error"]
            if status == 200:
                attempt, shard = document["metadata"]["attempt"], shard_of(document["task_id"])
                if document["output"] != question(number):
                    self.wrong.append(f"{number}: {document}")
            elif code not in HONEST:
                self.wrong.append(f"{number}: {status} {document}")
        told_at = self.began_at + finished_s
        self.told.append(Told(number, told_at - latency_s, told_at, code, attempt, shard))


class _Crowd(Load):
    """A load that runs until it is stopped."""

    leaving = False
    asked: dict[int, float]

    async def ask_until_leaving(self, callers: int, pause_s: float, run: _Answers) -> None:
        self._began = run.began_at = time.perf_counter()
        self.asked = {}

        async def caller() -> None:
            connection = _Connection()
            while not self.leaving:
                number, now = self._take(), time.perf_counter()
                self.asked[number] = now
                await self._one(connection, number, now)
                del self.asked[number]
                await asyncio.sleep(pause_s)
            connection.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(caller())


class Callers:
    """`count` callers, each sending its next request `pause_s` after its last answer, until the block ends."""

    def __init__(
        self, url: str, model: str, *, count: int = 24, pause_s: float = 0.02, timeout_s: float = 10.0
    ) -> None:
        def body(number: int) -> bytes:
            return json.dumps({"model": model, "input": question(number)}).encode()

        self._run = _Answers()
        self._crowd = _Crowd(url + "/v1/inference", body, timeout_s, self._run)
        self._timeout_s = timeout_s
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._crowd.ask_until_leaving(count, pause_s, self._run)), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._crowd.leaving = True
        self._thread.join(self._timeout_s + 30.0)
        assert not self._thread.is_alive(), "a caller got no answer and no end"

    @property
    def told(self) -> list[Told]:
        return self._run.told

    @property
    def asked(self) -> int:
        return self._crowd._next

    @property
    def longest_wait_s(self) -> float:
        """The longest wait among callers that wait now."""
        now = time.perf_counter()
        return max((now - at for at in list(self._crowd.asked.values())), default=0.0)

    def since(self, at: float) -> list[Told]:
        """Answers that came after `at`."""
        return [each for each in list(self.told) if each.told_at >= at]

    def codes(self) -> Counter[str]:
        return Counter(each.code for each in self.told)

    def check(self) -> None:
        """Check that every caller got an answer in time, and nobody got another caller's."""
        assert self._run.wrong == []
        assert len(self.told) == self.asked
        assert len({each.number for each in self.told}) == self.asked
        late = [each for each in self.told if each.took_s > self._timeout_s + HUNG_AFTER_S]
        assert not late, f"{len(late)} were answered late: {late[:3]}"
