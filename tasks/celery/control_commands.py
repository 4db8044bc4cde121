"""Bunch's own remote-control commands: the one list from which both kinds of worker make theirs.

    workers that serve models   do what the command says (`workers.celery.control`)
    the ops worker              replies that it serves no model (`tasks.ops.no_op_commands`)

Commands go to every worker, and Celery logs a `KeyError` with a traceback in a worker that does not know one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

RESET_FAULTS = "reset_faults"
UNLOAD_MODEL = "unload_model"


@dataclass(frozen=True, slots=True)
class Command:
    """A command as Celery's panel takes it (`celery.worker.control.Panel.register`); `asks`: it changes nothing."""

    signature: str = ""
    args: tuple[tuple[str, type], ...] = ()
    variadic: str | None = None
    asks: bool = False
    default_timeout: float = 1.0

    def options(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "type": "inspect" if self.asks else "control",
            "signature": self.signature or None,
            "args": list(self.args) or None,
            "variadic": self.variadic,
            "default_timeout": self.default_timeout,
        }


_MODEL = (("model", str),)
_MODEL_AND_TIER = (*_MODEL, ("tier", str))

COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "bunch_stats": Command(asks=True),
        "explain": Command("[id1 [id2 [… [idN]]]]", variadic="ids", asks=True, default_timeout=2.0),
        "pause": Command("<model> [tier]", _MODEL_AND_TIER),
        "resume": Command("[model [tier]]", _MODEL_AND_TIER),
        "drain": Command(),
        "tune": Command("<model> [key=value …]", _MODEL, "changes"),
        "reload_model": Command("<model> [key=value …]", _MODEL, "changes"),
        RESET_FAULTS: Command("<model>", _MODEL),
        UNLOAD_MODEL: Command("<model>", _MODEL),
        # Celery's own name.
        "pool_restart": Command(),
    }
)
