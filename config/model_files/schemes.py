"""The kinds of `source` that a model in bunch.toml can have: a row for each scheme.

    source ──scheme_of──▶ a row ──pattern, read_options──▶ ModelSettings ──loader──▶ Model, in the executor's process
                            │                                    └─direct──▶ the frontend's client, while Redis is away
                            └─cautions──▶ the warnings of `manage.py check`

What runs elsewhere is named as `package.module:name`, as in `config.policies`, and imported by the process that it is
for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from config.errors import Problem
from config.model_files import api_source
from config.model_files.adapters import KINDS
from config.model_files.sources import is_plain_function

Options: TypeAlias = dict[str, Any]


def _as_they_are(where: str, options: Options, folder: Path, problems: list[Problem]) -> Options:
    return options


def _no_cautions(where: str, address: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Scheme:
    """One kind of source.

    Args:
        form: how it is written, for error messages.
        pattern: of the whole source.
        loader: the function that makes a `Model` of `ModelSettings`, or raises `LoadError`. The executor's process
            imports it before the author's modules (docs/adr/0045).
        remote: another process computes. So the model needs no device, no input of it can break the executor's
            process, no module of the author's is imported, and it continues the requests' traces.
        direct: the class of the client with which a frontend calls the model itself (`webapp.fallback`); empty: there
            is none, and `direct = true` is refused.
        read_options: checks the `options` of the table `where`, and resolves paths relative to the folder of
            bunch.toml.
        cautions: what works with these options but is risky.
        variables: the environment variables that these options refer to, for whoever calls the model.
        takes_strings: whether a model takes nothing but strings, as far as the source and the import path tell without
            running any of it.
    """

    form: str
    pattern: re.Pattern[str]
    loader: str
    remote: bool = False
    direct: str = ""
    read_options: Callable[[str, Options, Path, list[Problem]], Options] = _as_they_are
    cautions: Callable[[str, str, Mapping[str, Any]], Iterator[Problem]] = _no_cautions
    variables: Callable[[Mapping[str, Any]], frozenset[str]] = lambda options: frozenset()
    takes_strings: Callable[[str, Sequence[str]], bool] = lambda source, path: False


_API = Scheme(
    form="an http(s) URL of a fixed API",
    pattern=re.compile(r"https?://\S+"),
    loader="workers.models.http:load",
    remote=True,
    direct="webapp.fallback:FallbackModel",
    read_options=api_source.read_options,
    cautions=api_source.cautions,
    variables=api_source.variables,
)
_ADAPTED = replace(
    _API,
    form=f"one of {', '.join(KINDS)} in front of an http(s) URL",
    pattern=re.compile(rf"({'|'.join(KINDS)}):https?://\S+"),
    direct="",
)
IMPORTED = ""
"""The scheme of a source without one: a class or a function that is imported."""

SCHEMES: dict[str, Scheme] = {
    IMPORTED: Scheme(
        form='"package.module:Name"',
        pattern=re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"),
        loader="workers.models.imported:load",
        takes_strings=is_plain_function,
    ),
    "http": _API,
    "https": _API,
    **{f"{kind}:{scheme}": _ADAPTED for kind in KINDS for scheme in ("http", "https")},
}


def scheme_of(source: str) -> Scheme:
    """The row of what stands before `://`. A source with an unknown scheme is taken for one to import, and fits not."""
    scheme, mark, _ = source.partition("://")
    return (SCHEMES.get(scheme) if mark else None) or SCHEMES[IMPORTED]


def forms(of: Callable[[Scheme], object] = lambda scheme: True) -> str:
    """The ways to write a source, for an error message: those of the rows for which `of` is true."""
    return " or ".join(dict.fromkeys(each.form for each in SCHEMES.values() if of(each)))


def resolve(place: str) -> Any:
    """Import what a row names as `package.module:name`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
