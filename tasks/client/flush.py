"""The requests of a flush, as `submit.lua` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from config.keys import Shard
from tasks.client.admission_args import AdmissionArgs
from tasks.client.pending import Pending
from tasks.protocol.outgoing import Outgoing
from tasks.script_args import ClassRow, FlushArgs, FlushHeader, FlushKeys, RunRow

_encode = msgspec.msgpack.Encoder().encode


class Posted(msgspec.Struct):
    """A request in the outbox. `rest` is its message without what the script writes."""

    out: Outgoing
    rest: bytes
    pending: Pending
    receipt: bool


class FlushWriter:
    """Writes the calls of one frontend process, whose `name` it is."""

    def __init__(self, name: str, keys: Shard) -> None:
        self._name = name
        self._keys = keys
        self._channel = keys.reply_channel(name)

    def call(
        self, batch: Sequence[Posted], rules: AdmissionArgs, number: int, *, asks: bool = False
    ) -> tuple[list[str], tuple[Any, ...]]:
        """The keys and arguments of a call. A flush that is sent again has the same `number`. `asks`: nothing is to be
        queued.
        """
        models: dict[str, int] = {}
        # Requests without a quota use the queue's name as their class: the common case, without a tuple for each. If a
        # key's limits have just changed, the rest of the flush uses the old ones.
        classes: dict[object, int] = {}
        quotas: dict[str, int] = {}
        keys = [*FlushKeys(flush=self._keys.flush(f"{self._name}:{number}"), arrivals=self._keys.arrivals())]
        rows: list[ClassRow] = []
        # Neighbours' common fields are sent once: each run, and where its messages begin.
        runs: list[tuple[int, int, int, int]] = []
        starts: list[int] = []
        messages: list[Any] = []
        known = False
        run: tuple[int, int, int, int] | tuple[()] = ()
        for item in batch:
            out = item.out
            kind: object = out.queue if out.quota is None else (out.queue, out.quota.key_id)
            named = out.request_key
            if out.once is not None:
                kind, named = (kind, True), out.once.words(named)
                known = True
            place = classes.get(kind)
            if place is None:
                place = classes[kind] = len(classes) + 1
                model = models.setdefault(out.submission.model, len(models) + 1)
                rows.append(rules.of_class(out, model, quotas))
            shared = (place, out.deadline_ms, out.queue_limit_ms, 2 if named else 1)
            if shared != run:
                run = shared
                runs.append(shared)
                starts.append(len(messages))
            if named:
                messages.append(named)
            messages.append(item.rest)
        for name in models:
            keys += rules.keys_of(name)
        keys += [self._keys.quota(key_id) for key_id in quotas]
        if known:
            keys += rules.known_keys
        header = FlushHeader(
            channel=self._channel,
            rules=rules.rules,
            shares=rules.shares,
            depth_limits=[rules.depth_limit(name) for name in models],
            classes=rows,
            runs=[
                RunRow(*each, messages=(end - start) // each[3])
                for each, start, end in zip(runs, starts, [*starts[1:], len(messages)], strict=True)
            ],
            asks=asks,
        )
        return keys, (*FlushArgs(header=_encode(header)), *messages)
