"""The command line: commands are found by name, and imported only when they are used.

It runs at every press of Tab, so listing the commands must not import what they need.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Mapping
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from config.errors import SettingsError
from config.installation import advice

_CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")


class OneLineErrors(click.Group):
    """Shows an error as one line and exits 1; with `--debug` the traceback is shown as well."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            # The reader has closed the pipe, as `head` does; click exits silently.
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            raise click.ClickException(describe(error)) from error


class LazyGroup(OneLineErrors):
    """A group that imports a command only when it is run or its help is shown.

    Args:
        lazy: for each name, the location of the command (`package.module:attribute`) and its line in the list.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy
        # Placeholders for the commands where names and help lines are enough: lists, completion, suggestions.
        self.commands = {name: click.Command(name, short_help=line) for name, (_, line) in lazy.items()}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        return cast("click.Command", getattr(importlib.import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(limit)) for name in sorted(self.commands)]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [name for name in sorted(self.commands) if name.startswith(incomplete)]
        named = [CompletionItem(name, help=self.commands[name].get_short_help_str()) for name in found]
        return named + click.Command.shell_complete(self, ctx, incomplete)


def describe(error: Exception) -> str:
    """An error as text. Our own errors say what to do; for others the type is named."""
    if isinstance(error, SettingsError):
        return "the settings are invalid:\n" + "\n".join(f"  {problem}" for problem in error.problems)
    if isinstance(error, ImportError) and (fix := advice(error)):
        return fix
    text = printable(" ".join(str(error).split())) or "no details given"
    known = type(error).__module__.split(".")[0] in {"batching", "cli", "config", "tasks", "workers"}
    return text if known else f"{type(error).__name__}: {text}"


def printable(text: str) -> str:
    """The text without control characters: callers' and models' texts must not control the operator's terminal."""
    return text.translate(_CONTROL)
