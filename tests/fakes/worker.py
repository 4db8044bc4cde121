"""A worker without Celery and without a model: it claims, answers as each input requests, and finishes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs
from redis.exceptions import RedisError

from batching.claim.lease import Verdict
from batching.claim.store import BatchStore, Claim, Settled
from batching.policy import Reason
from batching.ports import BatchInfo
from batching.request import Cancelled, Expired, Failed, Ok, Outcome, Rejected, Request
from config.redis import connect
from tasks.protocol.results import CeleryCodec
from tests.shards import store_of
from tests.waiting import PATIENCE_S

_CODEC = CeleryCodec(60_000)
_LOOK_EVERY_S = 0.05
_BY_VERDICT: dict[Verdict, Callable[[], Outcome]] = {Verdict.EXPIRED: Expired, Verdict.CANCELLED: Cancelled}


def answer(value: Any) -> Outcome:
    """The outcome that `{"do": …}` requests; anything else is echoed."""
    wish = value.get("do") if isinstance(value, dict) else None
    match wish:
        case "reject":
            return Rejected(value["text"])
        case "fail":
            return Failed(value["text"])
        case "grow":
            return Ok(msgspec.json.encode("x" * value["size"]))
        case _:
            return Ok(msgspec.json.encode({"echo": value}))


def serve(store: BatchStore, model: str, batch_id: str, size: int = 64) -> int:
    """Claim a batch and answer it; returns the number of requests."""
    claim = store.claim(model, batch_id, size)
    finish(store, claim, model)
    return len(claim.entries)


def finish(store: BatchStore, claim: Claim, model: str = "m") -> None:
    """Store the outcomes. `{"do": "vanish"}` is never answered, and for `{"do": "whisper"}` no reply is sent."""
    if not claim.entries:
        return
    info = BatchInfo(claim.batch_id, model, "1", len(claim.entries), Reason.IDLE, claim.view.now_ms, 0.001)
    results: list[Settled] = []
    for entry in claim.entries:
        request: Request = _CODEC.decode(entry)
        value = msgspec.json.decode(request.input)
        wish = value.get("do") if isinstance(value, dict) else None
        outcome = _BY_VERDICT.get(entry.verdict, lambda value=value: answer(value))()
        settled = _CODEC.encode(request, outcome, info)
        if wish == "whisper":
            settled = structs.replace(settled, reply_to="", announce=False)
        if wish != "vanish":
            results.append(settled)
    store.finish(claim.batch_id, results, last=True)


class StandInWorker(threading.Thread):
    """Serves one model until stopped; it waits for a Redis that is away."""

    def __init__(self, url: str, model: str = "m") -> None:
        super().__init__(name=f"stand-in for {model}", daemon=True)
        self._redis = connect(url)
        self._model = model
        self._stopping = threading.Event()

    def run(self) -> None:
        store = store_of(self._redis, f"stand-in-{id(self)}")
        count = 0
        while not self._stopping.is_set():
            count += 1
            try:
                if not serve(store, self._model, f"stand-in-{id(self)}-{count}"):
                    store.wait_for_bells([self._model], _LOOK_EVERY_S)
            except RedisError:
                self._stopping.wait(_LOOK_EVERY_S)

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)
        self._redis.close()
