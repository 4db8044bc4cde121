"""Makes a running worker follow the desired state: pauses, tuned policies, reloads, and its own drain.

    bunch:controls:<model> ──read at start, with each heartbeat, and when told──▶ Reconciler ─▶ loops, executors

It claims nothing until it has read the desired state once: a pause must survive a restart of all processes.

A reload goes through the fleet one executor at a time, by the worker that holds `bunch:reloading:<model>`: hold the
loop, finish its batches, start the new child, claim again. The first one that does not load ends the reload for all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from batching.claim.loop import ClaimLoop
from batching.executor import ExecutorState
from batching.policy import Policy
from config.keys import Shard
from config.secrets import masking
from config.settings import ModelSettings
from tasks.fleet.desired_state import RELOADABLE, TUNABLE, Desired, DesiredState, with_desired

logger = logging.getLogger(__name__)

# Keys of the file that a child depends on, and that a command cannot change.
_MADE_ONCE = ("devices", "memory_fraction", "urls", "ca_file", "cert_file", "key_file")
_LOCK_MS = 60_000
_POLL_S = 0.1


class ReloadableExecutor(Protocol):
    """The part of `workers.executor.process_executor.ProcessExecutor` that a reload needs."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> ExecutorState: ...
    @property
    def error(self) -> str | None: ...
    @property
    def loaded(self) -> ModelSettings | None:
        """The settings of the child that is ready now."""

    def replace(self, model: ModelSettings) -> None:
        """Let the child finish its batches, and replace it by one for `model`."""


@dataclass(slots=True)
class _Served:
    """One model as this worker serves it. `generation` is the last reload that it has done, refused or begun. `again`:
    another restart is due once the one that is under way has ended.
    """

    configured: ModelSettings
    running: ModelSettings
    pairs: list[tuple[ClaimLoop, ReloadableExecutor]] = field(default_factory=list)
    desired: Desired = field(default_factory=Desired)
    generation: int | None = None
    reloading: bool = False
    again: bool = False


class Reconciler:
    """The reconciler of one worker. `sync` may be called from any thread."""

    def __init__(
        self,
        redis: Redis,
        worker_id: str,
        pairs: Sequence[tuple[ModelSettings, ClaimLoop, ReloadableExecutor]],
        make_policy: Callable[[ModelSettings], Policy],
        read_file: Callable[[], Mapping[str, ModelSettings]] = dict,
        shard: Shard | None = None,
    ) -> None:
        self._redis = redis
        self._keys = shard or Shard()
        self._controls = DesiredState(redis, self._keys)
        self._worker_id = worker_id
        self._make_policy = make_policy
        self._read_file = read_file
        self._lock = threading.Lock()
        self._models: dict[str, _Served] = {}
        for model, loop, executor in pairs:
            self._models.setdefault(model.name, _Served(model, model)).pairs.append((loop, executor))
            loop.gate.hold()
        self._synced = False
        self._draining = False
        self._stopping = threading.Event()

    @property
    def draining(self) -> bool:
        return self._draining

    def configured(self) -> dict[str, ModelSettings]:
        """The settings of the file when each model was last started from it."""
        return {name: served.configured for name, served in self._models.items()}

    @property
    def loops(self) -> list[ClaimLoop]:
        return [loop for served in self._models.values() for loop, _ in served.pairs]

    def stop(self) -> None:
        """The worker stops: a reload that is under way leaves its executor as it is."""
        self._stopping.set()

    def drain(self) -> None:
        """Claim nothing more, and finish the batches in hand. The worker keeps running, until a `resume` or its end."""
        self._draining = True
        for loop in self.loops:
            loop.gate.hold()

    def resume(self) -> None:
        """End a drain."""
        self._draining = False
        self._release()

    def sync(self) -> None:
        """Read the desired state and apply it. Raises RedisError, and then everything stays as it is."""
        desired = self._controls.read(self._models)
        with self._lock:
            for name, served in self._models.items():
                self._follow(served, desired[name])
            if not self._synced:
                self._synced = True
                self._release()

    def restart(self) -> None:
        """Restart only this worker's executors, with the current settings of the file; after a reload that is under
        way, which may have begun before the file or the host changed.
        """
        with self._lock:
            for served in self._models.values():
                if served.reloading:
                    served.again = True
                else:
                    self._begin(served, None)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Each model as it is served now, as JSON values."""
        return {name: _described(served) for name, served in self._models.items()}

    def _release(self) -> None:
        if self._synced and not self._draining:
            for served in self._models.values():
                if not served.reloading:
                    for loop, _ in served.pairs:
                        loop.gate.release()

    def _follow(self, served: _Served, desired: Desired) -> None:
        ranks = frozenset(tier.rank for tier in desired.paused)
        for loop, _ in served.pairs:
            loop.gate.pause(ranks)
        first = served.generation is None
        if first or desired.tuned != served.desired.tuned:
            self._tune(served, desired)
        served.desired = desired
        generation = desired.reload.generation
        if first:
            # Its children may be starting already, from the file, which lacks the changes of a reload.
            served.generation = generation
            target = with_desired(served.configured, desired)
            if not _same_child(target, served.running):
                served.running = target
                for _, executor in served.pairs:
                    executor.replace(target)
                self._tune(served, desired)
        elif generation > (served.generation or 0) and not served.reloading:
            served.generation = generation
            self._begin(served, generation)

    def _begin(self, served: _Served, generation: int | None) -> None:
        served.reloading = True
        name = f"reload {served.configured.name}"
        threading.Thread(target=self._reload, args=(served, served.desired, generation), name=name, daemon=True).start()

    def _tune(self, served: _Served, desired: Desired) -> None:
        wanted = with_desired(served.configured, desired)
        served.running = msgspec.structs.replace(
            served.running, **{key: getattr(wanted, key) for key in (*TUNABLE, "policy_options")}
        )
        policy = self._make_policy(served.running)
        for loop, _ in served.pairs:
            loop.use(served.running, policy)
        if desired.tuned or served.desired.tuned:
            logger.info("%s: settings changed to %s", served.configured.name, desired.tuned or "those of the file")

    def _reload(self, served: _Served, desired: Desired, generation: int | None) -> None:
        name = served.configured.name
        try:
            configured = self._read_file().get(name, served.configured)
            target = with_desired(configured, desired)
            if self._reload_each(served, target, generation):
                served.configured = configured
                logger.info("%s: reloaded from %s", name, masking.shown("source", target.source))
        except Exception:
            logger.exception("%s: the reload failed", name)
        finally:
            with self._lock:
                served.reloading = False
                if served.again and not self._stopping.is_set():
                    served.again = False
                    self._begin(served, None)
            self._release()

    def _reload_each(self, served: _Served, target: ModelSettings, generation: int | None) -> bool:
        before = served.running
        for loop, executor in served.pairs:
            with self._turn(target.name) as ours:
                if not ours or (generation is not None and self._is_overtaken(target.name, generation)):
                    return False
                error = self._reload_one(loop, executor, target)
                if error is None:
                    continue
                logger.error("%s: reload refused; the previous version keeps running: %s", executor.name, error)
                if generation is not None:
                    self._controls.refuse(target.name, generation, error[-2000:])
                # Executors that had loaded go back too: a mixed fleet would give two kinds of answers.
                for other_loop, other in served.pairs:
                    if other is executor or (other.loaded and not _same_child(other.loaded, before)):
                        self._reload_one(other_loop, other, before)
                return False
        served.running = target
        return True

    def _reload_one(self, loop: ClaimLoop, executor: ReloadableExecutor, target: ModelSettings) -> str | None:
        """Reload one executor; returns the reason why it did not load, or None."""
        loop.gate.hold()
        try:
            # A batch that does not finish is ended by its own time limit, and given back.
            while not loop.wait_empty(_POLL_S * 5):
                if self._stopping.is_set():
                    return "the worker is stopping"
            executor.replace(target)
            deadline = time.monotonic() + target.start_timeout_s + 5.0
            while time.monotonic() < deadline and not self._stopping.wait(_POLL_S):
                if executor.loaded is target and executor.state is ExecutorState.READY:
                    loop.use(target, self._make_policy(target))
                    return None
                if executor.loaded is None and executor.state is ExecutorState.FAILED:
                    return executor.error or "the executor did not start"
                if executor.state is ExecutorState.UNLOADED:
                    # It is loaded from the new settings when requests wait for it.
                    loop.use(target, self._make_policy(target))
                    return None
            return "the executor was not ready in time"
        finally:
            if not self._draining:
                loop.gate.release()

    @contextlib.contextmanager
    def _turn(self, model: str) -> Iterator[bool]:
        """Hold this worker's turn to be one executor short; yields whether it came before the worker had to stop."""
        key = self._keys.reloading(model)
        ours = False
        while not self._stopping.is_set():
            with contextlib.suppress(RedisError):
                ours = bool(self._redis.set(key, self._worker_id, nx=True, px=_LOCK_MS))
            if ours or self._stopping.wait(_POLL_S):
                break
        renewing = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(key, renewing), daemon=True)
        if ours:
            renewal.start()
        try:
            yield ours
        finally:
            renewing.set()
            if ours:
                renewal.join()
                with contextlib.suppress(RedisError):
                    self._redis.delete(key)

    def _renew(self, key: str, done: threading.Event) -> None:
        while not done.wait(_LOCK_MS / 3000):
            with contextlib.suppress(RedisError):
                self._redis.pexpire(key, _LOCK_MS)

    def _is_overtaken(self, model: str, generation: int) -> bool:
        """Return whether another worker has refused it, or a later reload has replaced it, which `sync` will begin."""
        now = self._controls.read((model,))[model]
        return now.is_refused or now.reload.generation != generation


def _same_child(one: ModelSettings, other: ModelSettings) -> bool:
    return all(getattr(one, key) == getattr(other, key) for key in (*RELOADABLE, *_MADE_ONCE))


def _described(served: _Served) -> dict[str, Any]:
    running = served.running
    return {
        "source": masking.shown("source", running.source),
        "version": running.version,
        "policy": running.policy,
        "max_batch_size": running.max_batch_size,
        "max_wait_ms": running.max_wait_ms,
        "policy_options": running.policy_options,
        "timeout_ms": running.timeout_ms,
        "safe_size": next((loop.state.safe_size for loop, _ in served.pairs if loop.state.safe_size), None),
        "in_hand": sum(loop.in_hand for loop, _ in served.pairs),
        "paused": sorted(tier.value for tier in served.desired.paused),
        "tuned": dict(served.desired.tuned),
        "reload": {
            "generation": served.desired.reload.generation,
            "running": served.reloading,
            "refused": served.desired.refusal if served.desired.is_refused else None,
        },
    }
