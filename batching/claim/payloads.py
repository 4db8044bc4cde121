"""Large inputs and outputs of the batches of one worker, which lie beside the queue (`batching.blobs`).

    claim ──requests──▶ read ──▶ inputs of those that run      each is read while the executor works on another batch
                         ├─────▶ settled: its payload is gone, or it is too late for it
                         └─────▶ later: the store does not answer, or they are too many bytes for one batch
    outcome ──lay_aside──▶ a result with a reference           a large output; where that fails, the output itself
    stored ──release──▶ gone, or kept with its dead letter

Nothing of this may cost a request its outcome: what cannot be released expires by itself.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.exceptions import RedisError

from batching.blobs.local_files import LocalFiles
from batching.blobs.local_first import ElsewhereError, LocalFirst
from batching.blobs.reference import LARGEST_BYTES, Form, is_ours, output_name
from batching.blobs.store import GRACE_MS, BlobGoneError, BlobStore, NoRoomError
from batching.columns import blob_of, input_of
from batching.request import RAW_BYTES, Expired, Failed, Ok, Outcome, Rejected, Request
from config.settings import Settings

logger = logging.getLogger(__name__)

MAX_READ_BYTES = 256 * 1024 * 1024
"""The payloads of one batch, unless it is one request: worker and executor have them in memory at once."""
DEFAULT_INLINE_BYTES = 32 * 1024
_LATER_MS = 200
# How long a batch waits for inputs that are being fetched; then it goes without them.
_FETCH_WAIT_S = 0.05


@dataclass(slots=True)
class Inputs:
    """What becomes of the requests of a claim. `values` belong to `run`; `raw` has the places there of those that are
    the bytes themselves, in any buffer, not JSON. `later` has a pause in ms for each. `read_s`: what it took to read.
    """

    run: list[Request] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    raw: list[int] = field(default_factory=list)
    settled: list[tuple[Request, Outcome]] = field(default_factory=list)
    later: list[tuple[Request, int]] = field(default_factory=list)
    read_s: float = 0.0


class Fetcher(Protocol):
    """Fetches inputs that callers refer to, each in a time of its own."""

    def refers(self, value: bytes) -> bool:
        """Return whether the JSON of an input is a reference, or looks like one."""

    def begin(self, request: Request, left_s: float) -> None:
        """Begin to fetch the input of a request that has `left_s` seconds, unless that has begun before."""

    def result(self, request: Request, wait_s: float, most_bytes: int | None) -> bytearray | Rejected | Failed | None:
        """The input, or the outcome in its place; None if it is not there within `wait_s`, or larger than
        `most_bytes`.
        """


class Payloads:
    """The payloads of a worker; several threads may use it.

    Args:
        blobs: the store with the payloads of a task; None where there is none: a request with a reference cannot run.
        inline_bytes: outputs up to here stay in their results.
        most_bytes: the limit of what a plain Celery client has written; that of a frontend had its limit there.
        result_ttl_ms: how long a result may be read that answers several requests.
        letter_ttl_ms: how long dead letters live.
        files: what this worker shares with the frontends of its machine.
        fetcher: fetches inputs that callers refer to; None: no input is such a reference.
        clock: seconds.
    """

    def __init__(
        self,
        blobs: Callable[[str], BlobStore] | None = None,
        files: LocalFiles | None = None,
        *,
        inline_bytes: int = DEFAULT_INLINE_BYTES,
        most_bytes: int = LARGEST_BYTES,
        result_ttl_ms: int = 0,
        letter_ttl_ms: int = 0,
        fetcher: Fetcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blobs = blobs
        self._files = files or LocalFiles("", 0)
        self._inline_bytes = inline_bytes
        self._most_bytes = most_bytes
        self._result_ttl_ms = result_ttl_ms
        self._letter_ttl_ms = letter_ttl_ms
        self._fetcher = fetcher
        self._clock = clock

    @classmethod
    def of(
        cls,
        settings: Settings,
        blobs: Callable[[str], BlobStore],
        files: LocalFiles,
        letter_ttl_ms: int,
        fetcher: Fetcher | None,
    ) -> Payloads:
        """Those of a worker; in collocated mode nothing lies beside the queue, which is in the same memory."""
        if settings.mode == "collocated":
            return cls(fetcher=fetcher)
        return cls(
            blobs,
            files,
            inline_bytes=settings.inline_bytes,
            most_bytes=max(settings.blob_max_bytes, settings.largest_input_bytes),
            result_ttl_ms=settings.result_ttl_ms,
            letter_ttl_ms=letter_ttl_ms,
            fetcher=fetcher,
        )

    def _store(self, task_id: str) -> LocalFirst | None:
        """The store with the payloads of a request."""
        return None if self._blobs is None else LocalFirst(self._blobs(task_id), self._files)

    def read(self, requests: Sequence[Request], now_ms: float) -> Inputs:
        """The inputs of requests that were claimed at `now_ms`, which is Redis time."""
        if self._fetcher is None and not any(map(blob_of, requests)):
            return Inputs(list(requests), list(map(input_of, requests)))
        began, size, inputs = self._clock(), 0, Inputs()
        referring = self._begin_to_fetch(requests, now_ms)
        for request in requests:
            blob = request.blob
            if request.id in referring:
                size += self._take_fetched(request, began, MAX_READ_BYTES - size if size else None, inputs)
            elif blob is None:
                inputs.run.append(request)
                inputs.values.append(request.input)
            elif request.foreign and blob.size > self._most_bytes:
                # Memory of the size that it claims would be taken before anything is read.
                why = f"its $blob has more than {self._most_bytes} bytes (BUNCH_BLOB_MAX_BYTES)"
                inputs.settled.append((request, Rejected(why, "PayloadTooLarge")))
            elif size and size + blob.size > MAX_READ_BYTES:
                inputs.later.append((request, 0))
            else:
                size += blob.size
                self._read(request, now_ms + (self._clock() - began) * 1000, inputs)
        inputs.read_s = self._clock() - began
        return inputs

    def _read(self, request: Request, now_ms: float, inputs: Inputs) -> None:
        assert request.blob is not None
        if 0 < request.deadline_ms <= now_ms:
            inputs.settled.append((request, Expired()))
            return
        try:
            store = self._store(request.id)
            if store is None:
                raise BlobGoneError("this worker has no store of large payloads")
            value = store.get(request.blob)
        except ElsewhereError as error:
            # A worker on that machine may take it.
            logger.info("request %s is not for this worker: %s", request.id, error)
            inputs.later.append((request, _LATER_MS))
        except BlobGoneError as error:
            why = f"{error}; send the request again"
            inputs.settled.append((request, Failed(why, "PayloadGone", "BACKEND_UNAVAILABLE")))
        except RedisError as error:
            logger.warning("cannot read the payload of request %s now: %s", request.id, error)
            inputs.later.append((request, _LATER_MS))
        else:
            if request.blob.form == "bytes":
                inputs.raw.append(len(inputs.run))
            inputs.run.append(request)
            inputs.values.append(value)

    def _begin_to_fetch(self, requests: Sequence[Request], now_ms: float) -> set[str]:
        """Those whose inputs somebody else has."""
        if self._fetcher is None:
            return set()
        referring = [each for each in requests if each.blob is None and self._fetcher.refers(each.input)]
        for each in referring:
            self._fetcher.begin(each, (each.deadline_ms - now_ms) / 1000 if each.deadline_ms else math.inf)
        return {each.id for each in referring}

    def _take_fetched(self, request: Request, began: float, most_bytes: int | None, inputs: Inputs) -> int:
        """Returns the bytes that the batch has more."""
        assert self._fetcher is not None
        result = self._fetcher.result(request, _FETCH_WAIT_S - (self._clock() - began), most_bytes)
        if result is None:
            inputs.later.append((request, _LATER_MS))
        elif isinstance(result, bytearray):
            inputs.raw.append(len(inputs.run))
            inputs.run.append(request)
            inputs.values.append(result)
            return len(result)
        else:
            inputs.settled.append((request, result))
        return 0

    def lay_aside(self, outcomes: Sequence[tuple[Request, Outcome]]) -> Sequence[tuple[Request, Outcome]]:
        """The outcomes with references in the place of large outputs.

        Those of plain Celery clients stay, since these read their results themselves, and so do those with callbacks.
        None is raw any more: what is bytes lies there as such, and is base64 where it stays.
        """
        outputs = [outcome.output for _, outcome in outcomes if type(outcome) is Ok]
        limit = min(self._inline_bytes, RAW_BYTES)
        # Nearly always. Readers would take an output that looks like a reference for one.
        if max(map(len, outputs), default=0) <= limit and not any(map(is_ours, outputs)):
            return outcomes
        return [(request, self._laid_aside(request, outcome)) for request, outcome in outcomes]

    def _laid_aside(self, request: Request, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Ok):
            return outcome
        store = self._store(request.id)
        large = len(outcome.output) > self._inline_bytes or (not outcome.raw and is_ours(outcome.output))
        if store is None or not large or request.foreign or request.canvas or not request.result_ttl_ms:
            return outcome.in_json()
        ttl_ms = max(request.result_ttl_ms, request.keep_ms, self._result_ttl_ms if request.question else 0)
        # Others may ask for the output of a tracked request, or of an equal one, from wherever they are.
        sole = not (request.tracked or request.question or request.keep_ms)
        near = sole and self._files.seen_by([request.reply_to]) > 0
        # Another worker may have the request too: each has an output of its own, until one of them is taken.
        name = output_name(request.id, shared=bool(request.question or request.keep_ms))
        form: Form = "bytes" if outcome.raw else "json"
        ref = store.write_near(name, outcome.output, form, ttl_ms + GRACE_MS, near=near, alone=sole)
        try:
            if ref.near is not True:
                store.put(ref, outcome.output, ttl_ms + GRACE_MS)
        except (RedisError, NoRoomError) as error:
            logger.warning("the output of request %s stays in its result: %s", request.id, error)
            self._files.release([name])
            return outcome.in_json()
        return Ok(ref.json, outcome.metadata)

    def keep(self, request: Request) -> None:
        """The request becomes a dead letter, with its payload."""
        store = self._store(request.id)
        if request.blob is None or store is None:
            return
        try:
            if not store.extend(request.blob.id, self._letter_ttl_ms, keep=True):
                logger.warning("the dead letter of request %s has no payload: there is no room for it", request.id)
        except RedisError as error:
            logger.warning("the payload of request %s is not kept with its dead letter: %s", request.id, error)

    def release(self, requests: Iterable[Request]) -> None:
        """These requests have their outcomes, and are no dead letters."""
        self._release([(each.id, each.blob.id) for each in requests if each.blob is not None])

    def forget(self, task_ids: Sequence[str]) -> None:
        """These dead letters are not there any more."""
        # Where a plain Celery client has named the payload, it expires by itself.
        self._release([(each, each) for each in task_ids])

    def _release(self, blobs: Sequence[tuple[str, str]]) -> None:
        if not blobs or self._blobs is None:
            return
        self._files.release([blob_id for _, blob_id in blobs])
        ids: dict[BlobStore, list[str]] = {}
        for task_id, blob_id in blobs:
            ids.setdefault(self._blobs(task_id), []).append(blob_id)
        for store, each in ids.items():
            try:
                store.release(each)
            except RedisError as error:
                logger.info("%d payloads are not deleted now, and expire by themselves: %s", len(each), error)
