"""A plain client, a plain worker, and a real worker of ours between them, shared by the tests of Celery's features."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.celery_harness import (
    PATIENCE_S,
    bunch_worker,
    close_client,
    infer,
    plain_client,
    plain_worker,
    wait_for_models,
)
from tests.valkey import PrivateValkey
from tests.waiting import wait_until

MODELS = """\
[models.echo]
source = "tests.integration.celery_witness:Witness"
options = {{ path = "{seen}" }}
policy = "idle"
# A batch is held while other programs start.
timeout_ms = 240000
cache = false
"""


class Rig:
    """The client, the inputs that the model got, and the records of the plain worker's tasks."""

    def __init__(self, folder: Path, valkey: PrivateValkey, seen: Path) -> None:
        self.folder = folder
        self.url = valkey.url
        self.client = plain_client(valkey.url)
        self.redis = valkey.client()
        self._seen = seen

    def infer(self, *value: Any, **options: Any) -> Any:
        """A signature of `bunch.infer`; without a value it takes the result of the task before it."""
        return infer(self.client, *value, **options)

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        """A signature of a task of the plain worker."""
        return self.client.signature(f"plain.{name}", args=args, options=options)

    def computed(self) -> list[Any]:
        """Every input that the model got, once per time."""
        return [json.loads(line) for line in self._seen.read_text().splitlines()] if self._seen.exists() else []

    def noted(self, name: str) -> list[Any]:
        return [json.loads(raw) for raw in self.redis.lrange(f"seen:{name}", 0, -1)]

    def settle(self) -> None:
        """Wait until everything that was sent so far is done: what has not happened by now does not happen."""
        for signature in (self.infer("last"), self.task("note", "last", "settle")):
            signature.apply_async().get(timeout=PATIENCE_S)

    def inspect(self, timeout_s: float = PATIENCE_S, node: str = "bunch@here") -> Any:
        return self.client.control.inspect(timeout=timeout_s, destination=[node])

    def active(self) -> set[str]:
        replies = self.inspect().active() or {}
        return {each["id"] for each in replies.get("bunch@here", ())}

    @contextmanager
    def occupied(self) -> Iterator[Any]:
        """Keep the model busy with one task, so that later requests wait in its queue: less than a full batch is never
        claimed ahead.
        """
        gate = self.folder / uuid.uuid4().hex
        held = self.infer({"hold": str(gate)}).apply_async()
        try:
            wait_until(lambda: held.id in self.active(), "it is in hand")
            yield held
        finally:
            gate.touch()
        held.get(timeout=PATIENCE_S)

    def close(self) -> None:
        close_client(self.client)
        self.redis.close()


@contextmanager
def running(folder: Path, **plain: str) -> Iterator[Rig]:
    """Start the rig. `plain` is the plain worker's environment."""
    server = PrivateValkey()
    server.start()
    seen = folder / "seen.jsonl"
    ours = bunch_worker(folder, server, MODELS.format(seen=seen))
    theirs = plain_worker(folder, server.url, **plain)
    rig = Rig(folder, server, seen)
    try:
        ours.start()
        theirs.start()
        wait_for_models(rig.redis, "echo")
        wait_until(lambda: rig.inspect(0.5, "plain@here").ping(), "the plain worker answers")
        wait_until(lambda: rig.inspect(0.5).ping(), "our worker answers")
        yield rig
    finally:
        theirs.stop()
        ours.stop()
        rig.close()
        server.stop()
