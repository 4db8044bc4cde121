"""Options of `simulate` and `plan` for the speed of a GPU and the forming of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def service_options(*, batch_ms: float | None, item_ms: float, max_wait_ms: float) -> Callable[[_Command], _Command]:
    """Add the options to a command with these defaults in milliseconds; None: the option is required."""
    options = (
        click.option(
            "--batch-ms",
            default=batch_ms,
            show_default=True,
            type=click.FloatRange(min=0),
            help="Fixed time of a batch (milliseconds).",
        ),
        click.option(
            "--item-ms",
            default=item_ms,
            show_default=True,
            type=click.FloatRange(min=0),
            help="Time of a batch for each of its requests (milliseconds).",
        ),
        click.option(
            "--jitter",
            default=0.0,
            show_default=True,
            type=click.FloatRange(0, 1),
            help="Random variation of batch times; 0.1 is ±10 %.",
        ),
        click.option(
            "--max-batch",
            default=64,
            show_default=True,
            type=click.IntRange(min=1),
            help="Maximum batch size (requests).",
        ),
        click.option(
            "--max-wait-ms",
            default=max_wait_ms,
            show_default=True,
            type=click.FloatRange(min=0),
            help="Maximum queue delay (milliseconds).",
        ),
    )

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
