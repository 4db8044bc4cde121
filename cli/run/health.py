"""`health`: checks a role on this host, for probes without HTTP.

alive    each process of the role beats                          otherwise a restart helps
--ready  alive, Redis answers, and the role can do its work      otherwise a restart does not help
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.base import config_option, fail, locate, settings_here
from cli.supervisor import state
from config.settings import Settings
from tasks.fleet.liveness import beats

if TYPE_CHECKING:
    from redis import Redis

    from tasks.fleet.registry_reader import ExecutorRow

# Several beats, so that a machine that is busy for a moment kills nothing.
MAX_SILENCE_S = 5.0
# Probes usually wait for one second.
_TIMEOUT_S = 0.8


@click.command()
@click.argument("role", type=click.Choice(["web", "grpc", "worker", "ops", "flower"]))
@click.option("--ready", "ask_ready", is_flag=True, help="Also check that the role can do its work now (readiness).")
@config_option
def health(role: str, ask_ready: bool, config_file: Path | None) -> None:
    """Check that a role works on this host. If it does not, print the reason and exit 1.

    Without --ready this is a liveness probe: it passes while Redis is away, because a restart would not help.
    """
    settings = settings_here(config_file, role)
    why = silence(settings, role)
    if not why and ask_ready:
        why = obstacle(settings, locate(config_file, role), role)
    click.echo(why or f"{role} {'is ready' if ask_ready else 'is alive'}")
    if why:
        fail()


def silence(settings: Settings, role: str) -> str:
    """The process of the role that does not beat, as text; empty when each does."""
    if role == "flower":
        return _flower(settings)
    folder = Path(settings.state_dir)
    living = beats(folder, role)
    if not living:
        return f"no {role} process is registered in the state folder {folder}"
    slowest = max(living, key=lambda beat: beat.silent_s)
    if slowest.silent_s > MAX_SILENCE_S:
        return f"{role} (pid {slowest.pid}) has not beaten for {slowest.silent_s:.0f} s"
    return ""


def obstacle(settings: Settings, located: Settings, role: str) -> str:
    """The reason why a live role cannot do its work; empty when it can."""
    if role == "web":
        return _frontend(settings)
    from redis.exceptions import RedisError

    from config.redis import connect

    try:
        for url in dict.fromkeys((located.home_url, located.control_url)):
            with connect(url, timeout_s=_TIMEOUT_S, connect_timeout_s=_TIMEOUT_S) as redis:
                redis.ping()
                if role == "worker" and url == located.home_url:
                    why = _models(located, redis)
                    if why:
                        return why
        if located.is_clustered:
            _require_a_shard(located)
    except RedisError as error:
        return f"Redis does not answer: {' '.join(str(error).split())}"
    return ""


def _require_a_shard(settings: Settings) -> None:
    """Raise a RedisError if no shard of the cluster answers."""
    from config.shards import open_places
    from tasks.fleet.all_places import AllPlaces, answered

    places = open_places(settings, timeout_s=_TIMEOUT_S, connect_timeout_s=_TIMEOUT_S)
    asked = AllPlaces(places).ask(lambda pipeline, place: pipeline.ping(), _TIMEOUT_S)
    answered(each for each in asked if each.place is not places.home)


def _flower(settings: Settings) -> str:
    """Flower beats in no file: it is asked over HTTP, by an address that needs no password."""
    from cli.supervisor.probes import get

    status, _ = get(settings.flower_host, settings.flower_port, "/healthcheck")
    answer = f"/healthcheck is {status}" if status else "it does not answer"
    return "" if status == 200 else f"flower at port {settings.flower_port}: {answer}"


def _frontend(settings: Settings) -> str:
    """The frontend's own `/readyz`, so that all probes follow the same rule."""
    from cli.supervisor.probes import get, reason_of

    running = state.read(Path(settings.state_dir))
    port = int(running.url.rpartition(":")[2]) if running and running.url else settings.http_port
    status, body = get(settings.http_host, port, "/readyz", tls=bool(settings.tls_cert))
    if status == 200:
        return ""
    return reason_of(body) or (f"/readyz is {status}" if status else f"port {port} does not answer")


def _models(settings: Settings, redis: Redis) -> str:
    """The state of this host's workers in the register."""
    from tasks.fleet.registry_reader import Fleet

    here = {beat.pid for beat in beats(Path(settings.state_dir), "worker")}
    for row in Fleet(redis, lease_ttl_s=settings.lease_ttl_s).workers():
        if row.pid not in here:
            continue
        here.remove(row.pid)
        if row.state != "running":
            return f"worker (pid {row.pid}) is {row.state}"
        if not any(each.is_served for each in row.models):
            return f"worker (pid {row.pid}) has no model ready: " + _states(row.models)
    return f"worker (pid {min(here)}) is not registered yet" if here else ""


def _states(models: tuple[ExecutorRow, ...]) -> str:
    states = {each.model: each.state for each in models}
    errors = [each.error.strip().splitlines()[-1] for each in models if each.error]
    return ", ".join(f"{model} {state}" for model, state in states.items()) + (f"; {errors[0]}" if errors else "")
