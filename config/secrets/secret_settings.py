"""Settings that are secrets: which they are, which roles need them, and the files that may hold them.

    BUNCH_JWT_SECRET=…        or        BUNCH_JWT_SECRET_FILE=/run/secrets/jwt       never both

A secret of a model's API stands in the same two ways in its headers:

    options = { headers = { Authorization = { env = "NAME" } } }        or        { file = "path" }
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_EVERY_ROLE = frozenset({"web", "grpc", "worker", "ops", "flower"})
_FRONTS = frozenset({"web", "grpc"})
# The roles that are given each secret. The command line, and whoever starts the roles, has all.
HOLDERS: Mapping[str, frozenset[str]] = {
    "redis_url": _EVERY_ROLE,
    "broker_url": _EVERY_ROLE,
    "blob_url": _FRONTS | {"worker", "ops"},
    "service_token": _FRONTS,
    "jwt_secret": _FRONTS,
    "database_url": frozenset({"ops"}),
    "flower_basic_auth": frozenset({"flower"}),
    "message_secret": _FRONTS | {"worker"},
    "message_secret_previous": _FRONTS | {"worker"},
    "callback_secret": frozenset({"ops"}),
    "otlp_headers": _FRONTS | {"worker"},
}
SECRET_FIELDS = frozenset(HOLDERS)
FILE = "_file"
_MAX_BYTES = 65_536


class NoSecret(ValueError):
    """A secret is missing or cannot be used; the text says why, without the secret."""


def read_secret(path: Path) -> str:
    """The content of a secret file, without the newline that an editor leaves at its end.

    Raises:
        NoSecret: it cannot be read, is empty, or is not text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8-sig").rstrip("\r\n")
    except OSError as error:
        raise NoSecret(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NoSecret("is not UTF-8 text") from error
    if not text:
        raise NoSecret("is empty")
    if len(content) > _MAX_BYTES:
        raise NoSecret(f"is longer than {_MAX_BYTES} bytes, too long for a secret")
    return text


def base_of(field: str) -> str | None:
    """`jwt_secret` for `jwt_secret_file`; None for a name that is not the file of a secret."""
    base = field.removesuffix(FILE)
    return base if base != field and base in SECRET_FIELDS else None


def shown_path(path: str) -> str:
    """A path in a form that may be printed: one whose folder does not exist may be the secret itself, in the wrong
    place.
    """
    folder = Path(path).parent
    return path if "/" in path and folder != Path("/") and folder.is_dir() else "…"


def header_values(headers: Mapping[str, Any]) -> dict[str, str]:
    """The headers, with the current values of their `{ env = … }` and `{ file = … }`.

    Raises:
        NoSecret: names the header and what is missing.
    """
    return {name: _header_value(name, value) for name, value in headers.items()}


def names_in_environment(headers: Mapping[str, Any]) -> frozenset[str]:
    """The environment variables that `headers` refer to."""
    return frozenset(each["env"] for each in headers.values() if isinstance(each, dict) and "env" in each)


def header_problem(value: Any) -> str | None:
    """The problem with a header's value in bunch.toml, or None."""
    if isinstance(value, str):
        return None
    (kind, named), *more = value.items() if isinstance(value, dict) and value else [("", None)]
    if kind in {"env", "file"} and isinstance(named, str) and not more:
        return None
    return 'must be a text, { env = "NAME" } or { file = "path" }'


def _header_value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if "file" in value:
        try:
            found = read_secret(Path(value["file"]))
        except NoSecret as error:
            raise NoSecret(f"header {name}: {shown_path(value['file'])} {error}") from error
    else:
        found = os.environ.get(value["env"], "")
        if not found:
            raise NoSecret(f"header {name}: {value['env']} is not set in the environment")
    if not found.isprintable():
        raise NoSecret(f"header {name}: its value must be one line of printable text")
    return found
