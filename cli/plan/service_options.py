"""Options of `simulate` and `plan` for the speed of a GPU, the forming of batches, and the shards of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _read_sizes(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(each) for each in value.split(",")) if value else ()
    except ValueError:
        raise click.BadParameter("must be whole numbers, such as 1,2,4,8") from None
    if list(sizes) != sorted(set(sizes)) or min(sizes, default=1) < 1:
        raise click.BadParameter("must be ascending, each once, and at least 1")
    return sizes


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
            "--batch-sizes",
            default="",
            callback=_read_sizes,
            metavar="N,N,…",
            help="The only sizes that reach the model, padded: 1,2,4,8.  [default: any]",
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


def shard_options(command: _Command) -> _Command:
    """Add the options of the shards."""
    options = (
        click.option(
            "--shards", default=1, show_default=True, type=click.IntRange(min=1), help="Number of shards of the queue."
        ),
        click.option(
            "--reach",
            type=click.IntRange(min=1),
            help="--shards: the most shards from which a batch is claimed.  [default: all]",
        ),
        click.option(
            "--owners",
            default=0,
            show_default=True,
            type=click.IntRange(min=0),
            help="--shards: owners, each on one shard, the n-th with a share of requests as 1/n; 0: no owner is large.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
