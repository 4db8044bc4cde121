"""Checks of `check` and of each role for the packages that the settings need and this installation lacks."""

from __future__ import annotations

from collections.abc import Iterator

from config.environ import Role
from config.errors import Problem
from config.installation import how_to_install, is_installed, missing
from config.secrets.masking import masked_url
from config.settings import Settings

_FRONTS = {"web", "grpc"}
# The type of a model's inputs → what a worker needs to make them.
_EXTRA_OF = {"npy": "arrays", "arrow": "arrow"}


def package_problems(settings: Settings, role: Role | None = None) -> Iterator[Problem]:
    """A problem for each setting whose extra is not installed.

    Args:
        role: only what this role needs; None: what any role needs.
    """
    if role in {None, *_FRONTS} and settings.auth != "off" and not is_installed("jwt"):
        yield _needs("BUNCH_AUTH", settings.auth, "jwt", "accounts")
    if role in {None, "ops"} and settings.needs_database:
        modules = ["sqlalchemy", "alembic", *(["psycopg"] if settings.database_url.startswith("postgres") else [])]
        if absent := [name for name in modules if not is_installed(name)]:
            key = "auth" if settings.takes_keys else "ledger_retention_days"
            yield _needs(f"BUNCH_{key.upper()}", getattr(settings, key), absent[0], "accounts")
    if role in {None, "worker"}:
        yield from _of_models(settings)
    if role in {None, "worker", *_FRONTS} and settings.otlp_endpoint and (lacking := missing("otel")):
        yield _needs("BUNCH_OTLP_ENDPOINT", masked_url(settings.otlp_endpoint), lacking[0], "otel")


def _of_models(settings: Settings) -> Iterator[Problem]:
    for model in settings.models.values():
        extra = _EXTRA_OF.get(model.input_type, "")
        if extra and (lacking := missing(extra)):
            yield _needs(f"[models.{model.name}] input_type", model.input_type, lacking[0], extra)


def _needs(key: str, value: object, module: str, extra: str) -> Problem:
    return Problem(key, value, f"needs the package {module}, which is not installed: {how_to_install(extra)}")
