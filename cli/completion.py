"""Shell completion: `manage.py completion bash`, and the possible values of arguments.

It runs at each press of Tab, so values that are not available (no settings, no stack) complete to nothing, silently.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from cli.base import locate, redis_of, settings_here
from cli.supervisor.errors import NotRunning
from config.environ import ROOT
from config.errors import SettingsError
from config.installation import PROGRAM

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), default="bash")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    The script completes commands, options, models and workers. It works from any folder; no environment need be
    active. Load it with:

    \b
      bash:  source <(./manage.py completion bash)
      zsh:   source <(./manage.py completion zsh)
      fish:  ./manage.py completion fish | source
    """  # noqa: D301 - click reads the \b itself
    root = ctx.find_root()
    name = root.info_name or PROGRAM
    variable = f"_{name}_COMPLETE".replace("-", "_").replace(".", "_").upper()
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(_by_its_path(kind(root.command, {}, name, variable).source(), name))


def _by_its_path(script: str, name: str) -> str:
    """Click's script, for a program outside of PATH: otherwise zsh's script gives up, and fish's runs it by name."""
    path = shlex.quote(str(ROOT / name if name == "manage.py" else Path(sys.prefix) / "bin" / name))
    script = script.replace(f"    (( ! $+commands[{name}] )) && return 1\n", "")
    for shell in ("bash_complete $1", f"zsh_complete {name}"):
        script = script.replace(shell, f"{shell.split()[0]} {path}")
    return script.replace(f"(commandline -t) {name}", f"(commandline -t) {path}")


def model_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    found: Iterable[str] = ()
    with contextlib.suppress(SettingsError):
        found = settings_here(ctx.params.get("config_file")).models
    return _beginning(found, incomplete)


def node_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from redis.exceptions import RedisError

    from tasks.fleet.registry_reader import Fleet

    found: Iterable[str] = ()
    with contextlib.suppress(SettingsError, NotRunning, RedisError):
        settings = locate(ctx.params.get("config_file"))
        found = [row.node for row in Fleet(redis_of(settings), lease_ttl_s=settings.lease_ttl_s).workers() if row.node]
    return _beginning(found, incomplete)


def reload_keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`key=`, for all settings that a reload can override."""
    from tasks.fleet.desired_state import RELOADABLE

    return _beginning((f"{key}=" for key in RELOADABLE), incomplete)


def policy_keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`key=`, for all options of the model's policy."""
    from batching.policy import knobs
    from batching.policy_settings import make_policy
    from tasks.fleet.desired_state import TUNABLE, WEIGHT

    keys: Iterable[str] = TUNABLE
    with contextlib.suppress(SettingsError):
        model = settings_here(ctx.params.get("config_file")).models.get(ctx.params.get("model", ""))
        if model is not None:
            weight = (WEIGHT,) if model.name != model.family else ()
            keys = dict.fromkeys((*TUNABLE, *knobs(make_policy(model)), *weight))
    return _beginning((f"{key}=" for key in keys), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
