"""Versions of a model beside each other, each a model of its own from here on.

    [models.minilm]              ─▶ minilm      asked for as minilm@1 too, `version` of the table
    [models.minilm.versions.2]   ─▶ minilm@2    the keys of the table above, with its own over them

So queues, executors, learnt limits, metrics and dead letters are a version's without any rule for versions. A plain
name is divided among them in `webapp.model_versions` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from config.errors import Problem
from config.schema import ModelSettings
from config.secrets.masking import MASK

SEPARATOR = "@"
_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
# It becomes part of no queue's name, and may be a commit or have a local part.
_OWN_VERSION = re.compile(r"[A-Za-z0-9._+-]+")
# Keys that make no sense together: a version with the first of its own does not inherit the others.
_INSTEAD = {
    "source": ("urls",),
    "urls": ("source",),
    "devices": ("device", "instances"),
    "device": ("devices",),
    "instances": ("devices",),
    "batch_sizes": ("max_batch_size",),
}
_WHOLE = 100


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one version. `own` are the keys that it has itself, of a version that inherits others."""

    name: str
    where: str
    table: dict[str, Any]
    own: frozenset[str] | None = None

    def is_own(self, key: str) -> bool:
        """Return whether a problem with `key` is not also one of the table that it is inherited from."""
        return self.own is None or key == self.where or key.removeprefix(self.where).split(".")[0].strip() in self.own


def tables_of(tables: Mapping[str, Any], problems: list[Problem]) -> Iterator[Table]:
    """The tables of all models and of their versions, which come after the model's own."""
    for name, table in tables.items():
        where = f"[models.{name}]"
        if not _MODEL_NAME.fullmatch(name):
            fix = "must have only lower-case letters, digits, - and _: it becomes part of the queue names"
            problems.append(Problem(where, name, fix))
            continue
        if not isinstance(table, dict):
            problems.append(Problem(where, table, "must be a table"))
            continue
        shared = {key: value for key, value in table.items() if key not in {"versions", "weight"}}
        if "weight" in table:
            fix = f"is a key of [models.{name}.versions.<version>]; the model's own version has what those leave"
            problems.append(Problem(f"{where} weight", table["weight"], fix))
        yield Table(name, where, shared)
        yield from _versions(name, shared, table.get("versions", {}), problems)


def _versions(name: str, shared: Mapping[str, Any], versions: Any, problems: list[Problem]) -> Iterator[Table]:
    place = f"[models.{name}.versions]"
    if not isinstance(versions, dict):
        problems.append(Problem(place, MASK, f"must be tables [models.{name}.versions.<version>]"))
        return
    called = shared.get("version", "1")
    if versions and isinstance(called, str) and not _OWN_VERSION.fullmatch(called):
        fix = f"must have only letters, digits, ., -, _ and +: beside others it is asked for as {name}{SEPARATOR}…"
        problems.append(Problem(f"[models.{name}] version", called, fix))
    for version, own in versions.items():
        where = f"[models.{name}.versions.{version}]"
        if not _VERSION.fullmatch(version):
            fix = "must have only letters, digits, ., - and _, at most 31: it becomes part of the queue names"
            problems.append(Problem(where, version, fix))
        elif version == called:
            fix = f"is the version of [models.{name}] itself; give that one its own: version = …"
            problems.append(Problem(where, version, fix))
        elif not isinstance(own, dict):
            fix = f'must be a table; a version with a dot is written in quotes: [models.{name}.versions."1.2"]'
            problems.append(Problem(where, MASK, fix))
        else:
            if "version" in own:
                problems.append(Problem(f"{where} version", own["version"], f"is {version} already; remove it"))
            dropped = {key for each in own for key in _INSTEAD.get(each, ())}
            inherited = {key: value for key, value in shared.items() if key not in dropped}
            merged = {**inherited, **own, "version": version}
            yield Table(f"{name}{SEPARATOR}{version}", where, merged, frozenset(own))


def others_of(models: Mapping[str, ModelSettings], name: str) -> list[ModelSettings]:
    """The versions of the same model as `name` that have a weight, in the order of the file."""
    family = name.partition(SEPARATOR)[0]
    return [each for each in models.values() if each.family == family != each.name]


def too_heavy(weights: Mapping[str, float]) -> str | None:
    """The mistake, if the weights of a model's versions are together more than there is."""
    # To the hundredth: 82.79 + 8.06 + 9.15 is a little above 100 in binary.
    if round(sum(weights.values()), 2) <= _WHOLE:
        return None
    return (
        f"weights are per cent, at most {_WHOLE} for all versions of a model together; there are "
        f"{' + '.join(f'{weight:g} of {name}' for name, weight in weights.items())}"
    )


def weight_problems(models: Mapping[str, ModelSettings]) -> Iterator[Problem]:
    """The models whose versions have more than 100 per cent."""
    for model in models.values():
        if model.name == model.family:
            mistake = too_heavy({each.name: each.weight for each in others_of(models, model.name)})
            if mistake is not None:
                yield Problem(f"[models.{model.name}.versions]", MASK, mistake)
