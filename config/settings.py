"""Settings: the environment (`BUNCH_…`) over `bunch.toml` `[server]` over the defaults of `config.schema`.

A secret may be in a file of its own instead (`config.secrets.secret_settings`): `BUNCH_JWT_SECRET_FILE`,
`[server] jwt_secret_file`.

Every problem is reported at once, with its key, the bad value and what would be right; an unknown name is a problem
too, because a misspelt setting that is silently ignored is found in production.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from config.auth import is_loopback
from config.checks.contradictions import contradictions
from config.checks.document import read_document
from config.checks.foreign_names import PREFIX, made_by_kubernetes
from config.errors import Problem, SettingsError, not_of_kind
from config.model_files import api_source
from config.model_files.pools import read_pools
from config.model_files.schemas import BrokenSchema, read_schema
from config.model_files.schemes import forms, scheme_of
from config.model_files.versions import Table, tables_of
from config.redis_url import with_tls_files
from config.schema import Devices, ModelSettings, Settings
from config.secrets import masking
from config.secrets.masking import MASK
from config.secrets.secret_settings import NoSecret, base_of, read_secret, shown_path

__all__ = ["PREFIX", "Devices", "ModelSettings", "Settings", "file_is_named", "is_loopback", "load_settings"]

DEFAULT_CONFIG_FILE = "bunch.toml"

# Limit of a long value in a message about it.
_SHOWN = 120
# The largest number of names that are listed in one message.
_FEW = 8

_NO_SETTINGS = {"models", "pools", "default_model", "config_file", "worker_pool", "worker_models"}
_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(Settings) if field.name not in _NO_SETTINGS
}
_MODEL_TYPES: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(ModelSettings) if field.name != "name"
}
# Paths that are relative to bunch.toml when they are written there.
_FILES = {"tls_cert", "tls_key", "tls_client_ca"}
# BUNCH_CONFIG names the file; it is read before the settings in that file. BUNCH_NATIVE is read at the first import
# (`config.native`). The others are set for processes that we start: their role, what a worker serves, and the
# variables for its executors (`config.environ`).
_OTHER_NAMES = {"config", "role", "for_models", "native", "worker_pool", "worker_models"}


def file_is_named() -> bool:
    """Return whether the environment names the file of models and settings."""
    return bool(os.environ.get(PREFIX + "CONFIG"))


def load_settings(
    environ: Mapping[str, str] | None = None, config_file: str | None = None, role: str | None = None
) -> Settings:
    """Read, convert and cross-check every setting.

    Args:
        environ: the environment; `os.environ` when omitted.
        config_file: path of the TOML file; `BUNCH_CONFIG`, then `bunch.toml` if it exists, when omitted.
        role: the role that uses them; `BUNCH_ROLE`, which whoever starts a role sets, when omitted. A role has only
            its own secrets, so each role checks those that it needs.

    Raises:
        SettingsError: with every problem found.
    """
    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    chosen = config_file or environ.get(PREFIX + "CONFIG")
    path = Path(chosen or DEFAULT_CONFIG_FILE)
    document: dict[str, Any] = {}
    if path.is_file():
        document = read_document(path, problems)
    elif chosen:
        problems.append(Problem("--config" if config_file else PREFIX + "CONFIG", chosen, "no such file"))

    values: dict[str, Any] = {}
    _read_table(_table(document, "server", problems), path.parent, values, problems)
    _read_environment(environ, values, problems)
    models = _read_models(_table(document, "models", problems), path.parent, problems)
    pools = read_pools(_table(document, "pools", problems), problems)
    default_model = document.pop("default_model", next(iter(models), ""))
    for key, value in document.items():
        problems.append(
            Problem(
                key,
                masking.shown_of_unknown(value),
                f"unknown in {path.name}; allowed: default_model, [server], [models.<name>], [pools.<name>]",
            )
        )
    settings = Settings(
        **values,
        worker_pool=environ.get(f"{PREFIX}WORKER_POOL", ""),
        worker_models=environ.get(f"{PREFIX}WORKER_MODELS", ""),
        models=models,
        pools=pools,
        default_model=str(default_model),
        config_file=str(path.resolve()) if path.is_file() else "",
    )
    settings = _with_tls_to_redis(settings)
    problems += contradictions(settings, role or environ.get(f"{PREFIX}ROLE"))
    if problems:
        raise SettingsError(tuple(problems))
    return settings


def _with_tls_to_redis(settings: Settings) -> Settings:
    """The settings with the files of TLS in their URLs, where all clients of a URL look for them."""
    files = (settings.redis_ca, settings.redis_cert, settings.redis_key)
    urls = {key: with_tls_files(getattr(settings, key), *files) for key in ("redis_url", "broker_url", "blob_url")}
    return msgspec.structs.replace(settings, **urls)


def grpc_as_front(settings: Settings) -> Settings:
    """The settings of the gRPC role as those of a frontend: who is on this machine depends on where it listens."""
    return msgspec.structs.replace(settings, http_host=settings.grpc_host, http_port=settings.grpc_port)


def _table(document: dict[str, Any], name: str, problems: list[Problem]) -> dict[str, Any]:
    table = document.pop(name, {})
    if isinstance(table, dict):
        return table
    problems.append(Problem(f"[{name}]", table, "must be a table"))
    return {}


def _read_table(table: Mapping[str, Any], folder: Path, values: dict[str, Any], problems: list[Problem]) -> None:
    for key, value in table.items():
        where, field = f"[server] {key}", base_of(key)
        if key in _TYPES:
            given = str(folder / value) if key in _FILES and isinstance(value, str) and value else value
            _convert(where, given, _TYPES[key], key, values, problems, strict=True)
        elif field is not None:
            _read_file(where, str(folder / str(value)), field, f"[server] {field}", table.get(field), values, problems)
        else:
            problems.append(Problem(where, masking.shown_of_unknown(value), f"unknown; {_nearest(key, _TYPES)}"))


def _read_environment(environ: Mapping[str, str], values: dict[str, Any], problems: list[Problem]) -> None:
    files: list[tuple[str, str, str]] = []
    for name, value in environ.items():
        if not name.startswith(PREFIX) or made_by_kubernetes(name, value):
            continue
        key = name.removeprefix(PREFIX).lower()
        field = base_of(key)
        if key in _TYPES:
            _convert(name, value, _TYPES[key], key, values, problems, strict=False)
        elif field is not None:
            files.append((name, value, field))
        elif key == "native" and value not in {"", "on", "off"}:
            problems.append(Problem(name, masking.shown_of_unknown(value), "must be on or off"))
        elif key not in _OTHER_NAMES:
            known = [PREFIX + each.upper() for each in _TYPES]
            problems.append(
                Problem(name, masking.shown_of_unknown(value), f"unknown setting; {_nearest(name.upper(), known)}")
            )
    for name, value, field in files:
        plain = PREFIX + field.upper()
        if value:
            _read_file(name, value, field, plain, environ.get(plain), values, problems)


def _read_file(
    key: str, path: str, field: str, plain_key: str, plain: Any, values: dict[str, Any], problems: list[Problem]
) -> None:
    """The secret `field`, read from its file; an error if its plain value is set as well, since both cannot hold."""
    if plain:
        problems.append(Problem(key, shown_path(path), f"{plain_key} is set as well; leave out one of the two"))
        return
    try:
        values[field] = read_secret(Path(path))
    except NoSecret as error:
        problems.append(Problem(key, shown_path(path), f"must name a file that holds the secret; it {error}"))


def _nearest(name: str, known: Iterable[str]) -> str:
    """The known names closest to `name`, or all of them when they are few."""
    near = get_close_matches(name, known := list(known), n=3, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"allowed: {', '.join(known)}" if len(known) <= _FEW else "docs/operations.md lists all settings"


def _read_models(tables: Mapping[str, Any], folder: Path, problems: list[Problem]) -> dict[str, ModelSettings]:
    models: dict[str, ModelSettings] = {}
    for read in tables_of(tables, problems):
        found: list[Problem] = []
        model = _read_model(read, folder, found)
        problems += [each for each in found if read.is_own(each.key)]
        if model is not None:
            models[model.name] = model
    return models


def _read_model(read: Table, folder: Path, problems: list[Problem]) -> ModelSettings | None:
    where, table = read.where, read.table
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in _MODEL_TYPES:
            _convert(f"{where} {key}", value, _MODEL_TYPES[key], key, values, problems, strict=True)
        else:
            shown = masking.shown_of_unknown(value)
            problems.append(Problem(f"{where} {key}", shown, f"unknown; {_nearest(key, _MODEL_TYPES)}"))
    source = values["source"] = api_source.source_of(table)
    if not (isinstance(source, str) and scheme_of(source).pattern.fullmatch(source)):
        problems.append(Problem(f"{where} source", masking.shown("source", source), f"must be {forms()}"))
        return None
    if "options" in values:
        values["options"] = scheme_of(source).read_options(where, values["options"], folder, problems)
    api_source.read_keys(where, values, folder, problems, scheme_of(source).pattern)
    _read_schemas(where, values, folder, problems)
    if values.get("batch_sizes") and "max_batch_size" not in values:
        values["max_batch_size"] = max(values["batch_sizes"])
    model = ModelSettings(name=read.name, **values)
    try:
        # The value travels to the executor's process, which must not be where a wrong one is found.
        msgspec.msgpack.encode(model)
    except OverflowError:
        problems.append(Problem(where, MASK, "holds an integer of more than 64 bits"))
    return model


def _read_schemas(where: str, values: dict[str, Any], folder: Path, problems: list[Problem]) -> None:
    for key in ("input_schema", "parameters_schema"):
        declared = values.get(key)
        if declared is None:
            continue
        try:
            values[key] = read_schema(declared, folder)
        except BrokenSchema as error:
            problems.append(Problem(f"{where} {key}", _shortened(declared), f"must be a JSON Schema; {error}"))


def _shortened(value: object) -> object:
    return value if len(repr(value)) <= _SHOWN else f"{repr(value)[:_SHOWN]}…"


def _convert(
    key: str, value: Any, kind: Any, field: str, values: dict[str, Any], problems: list[Problem], *, strict: bool
) -> None:
    try:
        values[field] = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        problems.append(Problem(key, _shown(field, value), not_of_kind(error, kind)))


def _shown(field: str, value: Any) -> object:
    """A bad value in a form that may be shown; a model's options may be credentials."""
    return MASK if "options" in field or isinstance(value, dict | list) else masking.shown(field, value)
