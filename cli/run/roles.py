"""Runs one role in the foreground. The process becomes the role, so signals and exit status are those of the role."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec

from cli.base import config_option, locate, refuse_cluster
from cli.database import prepare_database
from cli.run.check_packages import package_problems
from cli.supervisor import role_commands
from config.environ import Role
from config.errors import SettingsError
from config.installation import how_to_install, missing
from config.model_files.pools import worker_problems
from config.secrets.private_files import restrict_umask
from config.settings import Settings


@click.command()
@config_option
def web(config_file: Path | None) -> None:
    """Run the HTTP frontend."""
    settings = locate(config_file, "web")
    _require_tls_files(settings)
    _become("web", role_commands.web(settings), settings)


@click.command()
@config_option
def grpc(config_file: Path | None) -> None:
    """Run the gRPC frontend."""
    from cli.supervisor import ports

    require_grpc()
    settings = locate(config_file, "grpc")
    _require_tls_files(settings)
    if settings.mode == "collocated":
        raise click.UsageError("collocated mode has no gRPC frontend: its queue is in the memory of the web process")
    port = ports.require_free(settings.grpc_host, settings.grpc_port, "BUNCH_GRPC_PORT")
    _become("grpc", role_commands.grpc(), msgspec.structs.replace(settings, grpc_port=port))


def _require_tls_files(settings: Settings) -> None:
    """Raise SettingsError if a frontend could not start with its certificate, which it would say in a traceback."""
    if settings.tls_cert:
        from config.front_tls import server_context

        server_context(settings)


def require_grpc() -> None:
    """Raise ClickException unless gRPC's packages are installed, which only this role needs."""
    if absent := missing("grpc"):
        raise click.ClickException(
            f"the package {absent[0]} is not installed; the gRPC role needs: {how_to_install('grpc')}"
        )


@click.command()
@config_option
@click.option("--name", default="worker", show_default=True, help="Node name, unique on this host.")
@click.option("--models", default="", metavar="A,B", help="Serve only these models.")
@click.option("--pool", default="", metavar="NAME", help="Serve the models of [pools.NAME], on its devices.")
def worker(config_file: Path | None, name: str, models: str, pool: str) -> None:
    """Run a worker that serves every configured model.

    With --models or --pool it serves only those.
    """
    settings = locate(config_file, "worker")
    if settings.mode == "collocated":
        raise click.UsageError("collocated mode has no workers: the executors are in the frontend's process")
    if models or pool:
        settings = msgspec.structs.replace(settings, worker_models=models, worker_pool=pool)
        if problems := worker_problems(settings):
            raise SettingsError(tuple(problems))
    _become("worker", role_commands.worker(settings, name), settings)


@click.command()
@config_option
@click.option("--name", default="ops", show_default=True, help="Node name.")
def ops(config_file: Path | None, name: str) -> None:
    """Run the ops worker: plain Celery tasks and periodic maintenance."""
    settings = locate(config_file, "ops")
    prepare_database(settings, click.echo)
    _become("ops", role_commands.ops(settings, name), settings)


@click.command()
@config_option
def flower(config_file: Path | None) -> None:
    """Run Flower, Celery's monitoring page."""
    from cli.supervisor import ports

    settings = locate(config_file, "flower")
    if missing("flower"):
        raise click.ClickException(f"Flower is not installed: {how_to_install('flower')}")
    port = ports.require_free(settings.flower_host, settings.flower_port, "BUNCH_FLOWER_PORT")
    _become("flower", role_commands.flower(settings, port), settings)


def _become(role: Role, command: tuple[str, ...], settings: Settings) -> None:
    from cli.supervisor.stack import role_environment

    refuse_cluster(settings)
    if problems := tuple(package_problems(settings, role)):
        raise SettingsError(problems)
    absolute = msgspec.structs.replace(settings, state_dir=str(Path(settings.state_dir).resolve()))
    restrict_umask()
    sys.stdout.flush()
    os.execve(command[0], command, role_environment(role, absolute))  # noqa: S606
