"""`doctor`: everything that `check` finds, and what the host lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from cli.base import fail, json_option, start_config_option
from cli.run.check import Findings, find, show
from cli.supervisor.allocator import PRELOAD, allocator_environment
from config.errors import Problem
from config.installation import IS_CHECKOUT
from config.native import hot_path
from config.process import descriptors
from config.process.devices import this_machine
from config.process.host import Needs, lacks, look
from config.settings import Settings

# As in config/gunicorn.py, which reads the settings when it is imported.
CONNECTIONS = 10_000
BACKLOG = 2048


@click.command()
@start_config_option
@json_option
def doctor(config_file: Path | None, as_json: bool) -> None:
    """Check the settings as `check` does, and this host. Exit 1 when there is a problem of the settings.

    What the host lacks is a warning, with the command that changes it: descriptors, kernel settings for Valkey and for
    connections, the GPU's driver, the embedded server's allocator, the compiled hot path.
    """
    found = find(config_file)
    host = list(host_findings(found.settings or Settings()))
    show(Findings(found.settings, found.problems, [*found.warnings, *host]), as_json)
    if not host and not as_json:
        click.echo("✓ this host has what Bunch asks for")
    if found.problems:
        fail()


def host_findings(settings: Settings) -> Iterator[Problem]:
    """The things that this host lacks for `settings`."""
    local = [model for model in settings.models.values() if not model.is_remote]
    host = look(Path(settings.state_dir))
    needs = Needs(
        open_files=CONNECTIONS + descriptors.RESERVED,
        backlog=BACKLOG,
        embedded=not settings.redis_url,
        durable=settings.durability != "memory",
        local_models=bool(local),
    )
    found = list(lacks(host, needs))
    yield from found
    machine = this_machine()
    if host.gpus_on_bus and host.driver and local and machine.why:
        yield Problem("NVIDIA GPUs", host.gpus_on_bus, f'device = "auto" uses the CPU, since {machine.why}')
    if not settings.redis_url and PRELOAD not in allocator_environment():
        fix = "the embedded Valkey takes a quarter more time with it: apt-get install libjemalloc2"
        yield Problem("allocator", "glibc's", fix)
    if hot_path is None:
        build = "make native" if IS_CHECKOUT else "pip install --force-reinstall --no-deps, from the sources"
        yield Problem("hot path", "Python", f"it costs a request a tenth more than in C; install gcc, then: {build}")
