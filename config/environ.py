"""The environment of child processes: each role gets what it needs, and no secrets of other roles.

up, manage.py          everything
     ├─ web, grpc, ops, flower   what a program of this machine needs, and the settings with the secrets of that role
     ├─ valkey             what a program of this machine needs
     └─ worker             all but what steers the libraries below us, and the settings with its own secrets
         └─ executor       all that the worker was started with, and no `BUNCH_…` at all

A model's author has variables of his own, which cannot be listed; so executors get every variable that is not known to
belong to another program.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from config.checks.foreign_names import PREFIX, is_for_models_only, made_by_kubernetes, steers
from config.secrets.secret_settings import FILE, HOLDERS, NoSecret, base_of, read_secret

ROOT = Path(__file__).resolve().parent.parent
Role = Literal["web", "grpc", "worker", "ops", "flower", "redis"]

# Paths, language, certificates and proxies, the allocator's and Python's variables.
_OF_THE_MACHINE = re.compile(
    r"PATH|HOME|PWD|USER|LOGNAME|SHELL|HOSTNAME|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TMPDIR|TEMP|TMP|TERM|NO_COLOR|XDG_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_\w+|GLIBC_TUNABLES|PYTHON\w+|VIRTUAL_ENV|COVERAGE_\w+"
    r"|SSL_CERT_(FILE|DIR)|OPENSSL_CONF|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|((HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy)"
)
# libpq's variables, for the database of keys and ledger.
_OF_A_ROLE: Mapping[str, re.Pattern[str]] = {"ops": re.compile(r"PG[A-Z]+")}
# Passes the worker the variables that executors get and the worker does not.
_FOR_MODELS = f"{PREFIX}FOR_MODELS"


def child_environment(
    role: Role,
    settings: Mapping[str, object],
    extra: Mapping[str, str] | None = None,
    import_from: tuple[str, ...] = (),
    also: Collection[str] = (),
    *,
    with_executors: bool = False,
) -> dict[str, str]:
    """The environment that a child process of Bunch starts with.

    Args:
        settings: setting names in lower case; None and "" leave what is inherited, so that an unset one
            stays unset.
        extra: names of other programs, such as `FLOWER_…`, that we set ourselves.
        import_from: folders besides the checkout and the working directory from which a model's source may be imported.
        also: names of further variables that this role needs.
        with_executors: it starts executors, though it is no worker; they get what a worker's would get.
    """
    ours = dict(os.environ)
    environment = {name: value for name, value in ours.items() if name in also or _reaches(role, name, value)}
    inherited = ours.get("PYTHONPATH", "")
    # Celery (`cwd_in_path`) and gunicorn (`Application.chdir`, by PWD) put the working directory first on the path,
    # unless it is there already: it may contain somebody else's `tasks.py` and `config.py`.
    here = (str(Path.cwd()), ours.get("PWD", ""))
    folders = [str(ROOT), *import_from, *here, *inherited.split(os.pathsep)]
    if role != "redis":
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))
        environment[f"{PREFIX}ROLE"] = role
        for name, value in settings.items():
            if value not in {None, ""}:
                _set(environment, name, str(value))
    if role == "worker" or with_executors:
        theirs = {name for name in ours if is_for_models_only(name) or _reaches("worker", name, ours[name])}
        own = environment.keys() | {name for name in theirs if name.startswith(PREFIX)}
        environment[_FOR_MODELS] = json.dumps({name: ours[name] for name in sorted(theirs - own)})
    return {**environment, **(extra or {})}


def executor_environment() -> dict[str, str]:
    """The environment of a model's process. It has no settings, and so none of our secrets."""
    given: dict[str, str] = json.loads(os.environ.get(_FOR_MODELS, "{}"))
    # Celery sets some of these itself in the worker.
    kept = {name: value for name, value in os.environ.items() if not (name.startswith(PREFIX) or steers(name))}
    return kept | given


def forget_other_programs() -> None:
    """Remove variables that change the libraries of this process, whatever environment it was started in."""
    for name in [name for name in os.environ if steers(name)]:
        del os.environ[name]


def keep_import_folders(path: Sequence[str]) -> None:
    """Order `PYTHONPATH` like `path`, for programs that this process starts; folders that `path` lacks are dropped."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(each for each in path if each in inherited)


def set_unless_given(name: str, value: str) -> None:
    """Set a variable of a library that we use, unless whoever started this process has set it."""
    os.environ.setdefault(name, value)


def _reaches(role: Role, name: str, value: str) -> bool:
    if name.startswith(PREFIX):
        return role != "redis" and not made_by_kubernetes(name, value) and _is_allowed(role, name)
    if role == "worker":
        return not steers(name)
    own = _OF_A_ROLE.get(role)
    return bool(_OF_THE_MACHINE.fullmatch(name) or (own and own.fullmatch(name)))


def _is_allowed(role: Role, name: str) -> bool:
    field = name.removeprefix(PREFIX).lower()
    return role in HOLDERS.get(base_of(field) or field, (role,))


def _set(environment: dict[str, str], field: str, value: str) -> None:
    """Set a setting, unless its secret file says the same: then it stays in the file alone."""
    name = PREFIX + field.upper()
    file = environment.get(name + FILE.upper())
    if file:
        try:
            if read_secret(Path(file)) == value:
                return
        except NoSecret:
            pass
        del environment[name + FILE.upper()]
    environment[name] = value
