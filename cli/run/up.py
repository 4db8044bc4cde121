"""`up`: runs the whole stack on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from cli.base import refuse_cluster, settings_for, start_config_option
from cli.database import prepare_database
from cli.run.roles import require_grpc
from cli.supervisor import role_commands, state
from config.errors import Problem, SettingsError
from config.installation import PROGRAM, how_to_install, is_installed
from config.secrets.masking import masked_url
from config.secrets.private_files import restrict_umask, tighten
from config.settings import Settings

if TYPE_CHECKING:
    from cli.supervisor.screen import Screen
    from cli.supervisor.stack import Options, Stack


_HOW_TO_GET_IN = f"   (with its password: {PROGRAM} status --json)"


@click.command()
@start_config_option
@click.option("--port", type=click.IntRange(0, 65535), help="HTTP port; 0 picks a free one.  [default: 8000]")
@click.option("--workers", type=click.IntRange(min=1), help="Worker processes, in each pool.  [default: 1]")
@click.option("--web-workers", type=click.IntRange(min=1), help="Number of frontend processes.  [default: 2]")
@click.option("--no-flower", is_flag=True, help="Do not start Flower.")
@click.option(
    "--collocated", is_flag=True, help="Run frontend and executors in one process, with the queue in its memory."
)
@click.option(
    "--reload", "watch", is_flag=True, help="Reload models whose modules change; restart for a new bunch.toml."
)
@click.option(
    "--sentinel", is_flag=True, help="Run the embedded Valkey as a primary and a replica, with three sentinels."
)
@click.option("--cluster", is_flag=True, help="Run an embedded cluster of three nodes, beside the embedded Valkey.")
@click.option("--replicas", is_flag=True, help="With --cluster: also run a replica of each node.")
@click.option("--grpc", "with_grpc", is_flag=True, help="Also run the gRPC frontend, at BUNCH_GRPC_PORT.")
def up(
    config_file: Path | None,
    port: int | None,
    workers: int | None,
    web_workers: int | None,
    no_flower: bool,
    collocated: bool,
    watch: bool,
    sentinel: bool,
    cluster: bool,
    replicas: bool,
    with_grpc: bool,
) -> None:
    """Run the whole stack in the foreground, until Ctrl-C.

    It starts an embedded Valkey (unless BUNCH_REDIS_URL names a server), workers, the ops worker, the frontend and
    Flower. A process that dies is restarted. Ctrl-C drains and stops everything; a second Ctrl-C kills. With a wrong
    setting, server or model nothing is started; `check` shows the same problems.

    --collocated (BUNCH_MODE=collocated) needs no Redis for a request and is faster on one machine. It gives up what
    Redis is for: requests are lost when that one process dies, there is one frontend process, and plain Celery clients
    are refused. Without it the same configuration runs durably.

    --reload is for writing a model: a module that changes reloads the models of the folder of bunch.toml, and a changed
    bunch.toml starts the stack again.

    --sentinel is for trying failover: kill the primary, and watch requests go on (docs/redis.md). --cluster is for
    trying shards on several nodes; with --replicas, kill one of them.
    """
    from cli.run.check import start_problems
    from cli.supervisor.disk import required_room
    from cli.supervisor.screen import Screen
    from cli.supervisor.stack import Options

    if with_grpc:
        require_grpc()
    given = {"http_port": port, "web_workers": web_workers, "mode": "collocated" if collocated else None}
    given = {name: value for name, value in given.items() if value is not None}
    settings = msgspec.structs.replace(settings_for(config_file), **given)
    refuse_cluster(settings)
    in_one = settings.mode == "collocated"
    if in_one and (workers or (web_workers or 1) > 1):
        raise click.UsageError("collocated mode is one process: leave out --workers and --web-workers")
    if in_one and with_grpc:
        raise click.UsageError("the gRPC frontend is a process of its own, which collocated mode does not have")
    _require_servers(settings, sentinel=sentinel, cluster=cluster, replicas=replicas)
    if problems := tuple(start_problems(settings)):
        raise SettingsError(problems)
    screen = Screen(sys.stdout)
    restrict_umask()
    state_dir = Path(settings.state_dir)
    with required_room(state_dir), state.UpLock(state_dir):
        if open_to_others := tighten(state_dir):
            screen.line(open_to_others, style="yellow")
        prepare_database(settings, screen.line)
        flower = not (no_flower or in_one)
        if flower and not is_installed("flower"):
            flower = False
            screen.line(f"Flower is not installed ({how_to_install('flower')}); starting without it", style="yellow")
        options = Options(
            workers=workers or 1, flower=flower, grpc=with_grpc, sentinel=sentinel, cluster=cluster, replicas=replicas
        )
        while changed := _serve(settings, options, screen, watch):
            read_anew = msgspec.structs.replace(settings_for(config_file), **given)
            # On the port that it has told everybody.
            settings = msgspec.structs.replace(read_anew, http_port=changed.settings.http_port)
            screen = Screen(sys.stdout)
    screen.line("stopped")


def _require_servers(settings: Settings, *, sentinel: bool, cluster: bool, replicas: bool) -> None:
    """Raise UsageError or SettingsError if there cannot be these embedded servers, or others are needed."""
    in_one = settings.mode == "collocated"
    if (sentinel or cluster) and (in_one or settings.redis_url):
        other, option = "collocated mode" if in_one else "BUNCH_REDIS_URL", "--cluster" if cluster else "--sentinel"
        raise click.UsageError(f"{option} runs an embedded Valkey, which {other} does without: leave out one of them")
    if sentinel and cluster:
        raise click.UsageError("the nodes of a cluster watch each other: leave out --sentinel")
    if replicas and not cluster:
        raise click.UsageError("--replicas are those of the nodes of --cluster: add that, or use --sentinel")
    if settings.durability == "replica" and not (sentinel or replicas or settings.redis_url):
        fix = "needs a replica: use --sentinel or --cluster --replicas, or name a Redis that has one in BUNCH_REDIS_URL"
        raise SettingsError((Problem("BUNCH_DURABILITY", "replica", fix),))


def _serve(settings: Settings, options: Options, screen: Screen, watch: bool) -> Stack | None:
    """Run one stack to its end; returns it if another one is to follow, since the file of its settings has changed."""
    from cli.run.reloading import Reloading
    from cli.supervisor.run import run
    from cli.supervisor.stack import Stack

    stack = Stack(settings, options)
    reloading = Reloading(stack, screen) if watch else None
    run(stack, screen, lambda: _say_ready(stack, screen), reloading.work if reloading else None)
    return stack if reloading and reloading.starts_again else None


def _how_to_see_it(settings: Settings) -> str:
    if settings.auth == "off" or settings.flower_basic_auth:
        return ""
    return f"   (user {role_commands.FLOWER_USER}, password in {role_commands.flower_password(settings)})"


def _say_ready(stack: Stack, screen: Screen) -> None:
    settings = stack.settings
    screen.line()
    screen.line(f"http    {stack.url}")
    screen.line(f"page    {stack.url}/ops")
    if stack.options.grpc:
        screen.line(f"grpc    {stack.settings.grpc_host}:{stack.settings.grpc_port}")
    if stack.flower_url:
        screen.line(f"flower  {stack.flower_url}{_how_to_see_it(settings)}")
    redis_url = stack.valkey.tcp_url if stack.valkey and not stack.cluster else settings.redis_url
    screen.line(f"redis   {masked_url(redis_url)}" + (_HOW_TO_GET_IN if stack.valkey or stack.watched else ""))
    screen.line(f"logs    {stack.state_dir / 'log'}")
    if settings.mode == "collocated":
        screen.line(
            "mode    collocated: what waits is in memory, and is lost when the web process dies", style="yellow"
        )
    screen.line("try     " + curl_line(stack.url, settings))
    screen.line()
    screen.line("ready")


def curl_line(url: str, settings: Settings) -> str:
    """A request to the default model, in the form of its inputs and with a kind of credential that is accepted."""
    # Its certificate is rarely one for a name of loopback.
    curl = "curl -k" if url.startswith("https:") else "curl"
    who = ""
    if settings.takes_keys or settings.takes_tokens:
        who = ' -H "Authorization: Bearer $KEY"'
    elif settings.takes_certificates:
        who = " --cert client.pem --key client.key"
    name = settings.default_model
    if settings.models[name].takes_bytes:
        rest = f"-H 'Content-Type: application/octet-stream' --data-binary @FILE '{url}/v1/inference?model={name}'"
        return f"{curl}{who} {rest}"
    body = json.dumps({"model": name, "input": "A bunch of celery"})
    return f"{curl} {url}/v1/inference{who} -H 'Content-Type: application/json' -d '{body}'"
