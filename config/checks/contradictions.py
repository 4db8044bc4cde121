"""Settings checked against each other and against their use. Each problem names the setting to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from config import auth
from config.allowed_hosts import CallbackHosts, RefHosts
from config.auth import is_loopback
from config.checks.foreign_names import PREFIX
from config.checks.input_types import body_problems, input_type_problems
from config.checks.placement import placement_problems
from config.checks.residency import residency_problems
from config.checks.shapes import shape_problems
from config.errors import Problem
from config.model_files.schemes import forms, scheme_of
from config.model_files.versions import weight_problems
from config.policies import POLICIES
from config.redis_url import FORMS, is_cluster, problem_of, uses_tls
from config.schema import ModelSettings, Settings
from config.secrets import masking
from config.tiers import Tier

_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f:]+")
_ORIGIN = re.compile(r"\*|https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
_LEAST_MEMORY_BYTES = 64 * 1024 * 1024
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(Settings)}


def contradictions(settings: Settings, role: str | None) -> list[Problem]:
    """Every contradiction that concerns `role`; None: every role."""
    found: list[Problem] = []
    if settings.auth == "off" and not is_loopback(settings.http_host):
        found.append(
            Problem(
                "BUNCH_HTTP_HOST",
                settings.http_host,
                "BUNCH_AUTH=off serves loopback addresses only; set BUNCH_AUTH=keys, or keep 127.0.0.1 and put an "
                "authenticating proxy in front, with its name in BUNCH_ALLOWED_HOSTS",
            )
        )
    found += _bad_names(settings)
    found += _tls_out_of_order(settings, role)
    if role in {None, "flower"} and not is_loopback(settings.flower_host) and not settings.flower_basic_auth:
        found.append(
            Problem(
                "BUNCH_FLOWER_HOST", settings.flower_host, "set BUNCH_FLOWER_BASIC_AUTH=user:password to expose Flower"
            )
        )
    if role in {None, "flower"} and "," in settings.flower_basic_auth:
        why = "must be one user:password without a comma: Flower reads what follows a comma as another password"
        found.append(Problem("BUNCH_FLOWER_BASIC_AUTH", "…", why))
    if role in {None, "grpc"} and settings.auth == "off" and not is_loopback(settings.grpc_host):
        found.append(
            Problem(
                "BUNCH_GRPC_HOST",
                settings.grpc_host,
                "BUNCH_AUTH=off serves loopback addresses only; set BUNCH_AUTH=keys, or keep 127.0.0.1",
            )
        )
    if role in {None, "web", "grpc"}:
        found += auth.contradictions(settings)
    if settings.models and settings.default_model not in settings.models:
        found.append(Problem("default_model", settings.default_model, f"must be one of {', '.join(settings.models)}"))
    found += _limits_out_of_order(settings)
    found += body_problems(settings)
    for model in settings.models.values():
        found += _model_out_of_order(model, settings)
    found += weight_problems(settings.models)
    found += placement_problems(settings)
    found += residency_problems(settings)
    found += _not_in_collocated_mode(settings)
    found += _tls_to_redis(settings)
    found += _cluster(settings)
    found += _callbacks(settings, role)
    found += _references(settings)
    if 0 < settings.redis_max_memory_bytes < _LEAST_MEMORY_BYTES:
        found.append(
            Problem(
                "BUNCH_REDIS_MAX_MEMORY_BYTES",
                settings.redis_max_memory_bytes,
                f"must be at least {_LEAST_MEMORY_BYTES}, or 0 for a quarter of the machine's memory",
            )
        )
    return found + _bad_addresses(settings)


def _bad_names(settings: Settings) -> Iterator[Problem]:
    hosts = [each for each in settings.host_names if not _HOST_NAME.fullmatch(each)]
    if hosts:
        fix = "must be a comma-separated list of host names, without ports or wildcards"
        yield Problem("BUNCH_ALLOWED_HOSTS", ", ".join(hosts), fix)
    origins = [each for each in settings.origins if not _ORIGIN.fullmatch(each)]
    if origins:
        fix = "must be * or a comma-separated list of origins without paths: https://app.example, http://localhost:3000"
        yield Problem("BUNCH_CORS_ORIGINS", ", ".join(origins), fix)
    if settings.auth == "off" and "*" in settings.origins:
        fix = "with BUNCH_AUTH=off, * lets any page opened on this machine send requests; name the origins"
        yield Problem("BUNCH_CORS_ORIGINS", "*", fix)


def _tls_to_redis(settings: Settings) -> Iterator[Problem]:
    files = {key: getattr(settings, key) for key in ("redis_ca", "redis_cert", "redis_key")}
    for key, path in files.items():
        if path and not Path(path).is_file():
            yield Problem(PREFIX + key.upper(), path, "must name a file in PEM form; there is none at this path")
    if any(files.values()) and not any(map(uses_tls, (settings.redis_url, settings.broker_url, settings.blob_url))):
        key = next(key for key, path in files.items() if path)
        fix = "is for TLS, which no URL asks for: write rediss://, rediss+sentinel:// or rediss+cluster://"
        yield Problem(PREFIX + key.upper(), files[key], fix)
    if bool(settings.redis_cert) != bool(settings.redis_key):
        missing = "redis_key" if settings.redis_cert else "redis_cert"
        why = "must be set as well: a client certificate has two files, itself and its key"
        yield Problem(PREFIX + missing.upper(), "", why)


def _cluster(settings: Settings) -> Iterator[Problem]:
    """A cluster has the shards of requests. The rest, and Celery, which knows no cluster, need another Redis."""
    plain = "redis://, rediss://, unix://, sentinel:// or rediss+sentinel://"
    if is_cluster(settings.blob_url):
        why = f"must not be a cluster: leave it out, and payloads are with their requests; or write {plain}"
        yield Problem("BUNCH_BLOB_URL", masking.masked_url(settings.blob_url), why)
    if is_cluster(settings.broker_url):
        why = f"must not be a cluster, which Celery does not know; write {plain}"
        yield Problem("BUNCH_BROKER_URL", masking.masked_url(settings.broker_url), why)
    elif settings.is_clustered and not settings.broker_url:
        why = (
            "must be set where BUNCH_REDIS_URL is a cluster: Celery, API keys, metrics and the queues of plain clients "
            f"need a Redis that is none; write {plain}"
        )
        yield Problem("BUNCH_BROKER_URL", "", why)


def _references(settings: Settings) -> Iterator[Problem]:
    try:
        RefHosts(settings.ref_hosts)
    except ValueError as error:
        fix = "must be a comma-separated list of name, name:port or *.example.org, without schemes and paths"
        yield Problem("BUNCH_REF_HOSTS", str(error), fix)


def _callbacks(settings: Settings, role: str | None) -> Iterator[Problem]:
    if not settings.callback_hosts:
        return
    try:
        CallbackHosts(settings.callback_hosts)
    except ValueError as error:
        fix = "must be a comma-separated list of name, name:port or *.example.org, without schemes and paths"
        yield Problem("BUNCH_CALLBACK_HOSTS", str(error), fix)
    if settings.mode == "collocated":
        fix = "collocated mode has no ops worker, which pushes results; set BUNCH_MODE=durable, or leave this out"
        yield Problem("BUNCH_CALLBACK_HOSTS", settings.callback_hosts, fix)
    elif role in {None, "ops"} and not settings.callback_secret:
        fix = "must be set where BUNCH_CALLBACK_HOSTS is: it signs what is pushed; make one: openssl rand -hex 32"
        yield Problem("BUNCH_CALLBACK_SECRET", "", fix)


def _tls_out_of_order(settings: Settings, role: str | None) -> Iterator[Problem]:
    pair = {"BUNCH_TLS_CERT": settings.tls_cert, "BUNCH_TLS_KEY": settings.tls_key}
    for key, missing in (("BUNCH_TLS_CERT", "BUNCH_TLS_KEY"), ("BUNCH_TLS_KEY", "BUNCH_TLS_CERT")):
        if pair[key] and not pair[missing]:
            yield Problem(missing, "", f"must be set as well as {key}: TLS needs a certificate and its private key")
    if settings.tls_client_ca and not settings.takes_certificates:
        fix = "is used only where BUNCH_AUTH has mtls; add it there, or leave this out"
        yield Problem("BUNCH_TLS_CLIENT_CA", settings.tls_client_ca, fix)
    if (
        role in {None, "web", "grpc"}
        and settings.takes_certificates
        and not (settings.tls_client_ca and settings.tls_cert)
    ):
        fix = "mtls needs BUNCH_TLS_CERT, BUNCH_TLS_KEY, and BUNCH_TLS_CLIENT_CA with the authorities of the clients"
        yield Problem("BUNCH_AUTH", settings.auth, fix)
    if role == "grpc" and settings.auth == "mtls":
        fix = "gRPC identifies callers by keys and tokens only; add keys or jwt, or do not start this role"
        yield Problem("BUNCH_AUTH", settings.auth, fix)
    try:
        settings.proxy_networks  # noqa: B018 - its error is what is asked for
    except ValueError as error:
        fix = f"must be a comma-separated list of addresses and networks, such as 10.0.0.0/8: {error}"
        yield Problem("BUNCH_TRUSTED_PROXIES", settings.trusted_proxies, fix)


def _not_in_collocated_mode(settings: Settings) -> Iterator[Problem]:
    if settings.mode != "collocated":
        return
    if settings.durability in {"disk", "replica"}:
        fix = "collocated mode keeps requests in its own memory; set BUNCH_MODE=durable, or leave this out"
        yield Problem("BUNCH_DURABILITY", settings.durability, fix)
    if settings.shard_count > 1:
        fix = "collocated mode keeps its queues in its own memory; leave this out"
        yield Problem("BUNCH_SHARDS", settings.shards, fix)
    if settings.pools:
        fix = "collocated mode has one process, which serves all models; name devices in the models"
        yield Problem("[pools]", ", ".join(settings.pools), fix)


def _model_out_of_order(model: ModelSettings, settings: Settings) -> list[Problem]:
    found: list[Problem] = []
    if model.policy not in POLICIES:
        found.append(Problem(f"[models.{model.name}] policy", model.policy, f"must be one of {', '.join(POLICIES)}"))
    if model.direct and not scheme_of(model.source).direct:
        found.append(
            Problem(
                f"[models.{model.name}] direct",
                model.direct,
                f"needs {forms(lambda scheme: scheme.direct)} as the source: only that can be called without a worker; "
                "remove it",
            )
        )
    if model.group_by_cost and not model.max_batch_cost:
        found.append(
            Problem(
                f"[models.{model.name}] group_by_cost",
                True,
                "needs max_batch_cost, the budget of a group; set it as well",
            )
        )
    if model.spare and model.is_remote:
        where = f"[models.{model.name}] spare"
        found.append(
            Problem(where, True, "needs a class or a function as the source, which takes time to load; remove it")
        )
    found += shape_problems(model)
    found += input_type_problems(model)
    limit = min(("request_timeout_ms", "queue_timeout_ms"), key=lambda key: getattr(settings, key))
    if 0 < model.timeout_factor < 1:
        found.append(
            Problem(
                f"[models.{model.name}] timeout_factor",
                model.timeout_factor,
                "must be at least 1, or 0 for no limit: less kills batches that take no longer than usual; 3 is common",
            )
        )
    if (model.max_wait_ms or 0) >= getattr(settings, limit):
        found.append(
            Problem(
                f"[models.{model.name}] max_wait_ms",
                model.max_wait_ms,
                f"must be below {PREFIX}{limit.upper()} ({getattr(settings, limit)}), or requests expire "
                "while they wait for their batch to fill",
            )
        )
    for key in ("inputs", "outputs"):
        names = [each.name for each in getattr(model, key) or ()]
        if len(set(names)) < len(names):
            found.append(Problem(f"[models.{model.name}] {key}", ", ".join(names), "must have different names"))
    return found


def _bad_addresses(settings: Settings) -> list[Problem]:
    redis = (
        r"(redis|rediss|unix|redis\+socket|(rediss\+)?(sentinel|cluster))://[^/?#]*(/[^@#?]*)?(\?[^#]*)?$",
        f"must start with {FORMS}; {masking.PERCENT}",
    )
    kinds = {
        "redis_url": redis,
        "broker_url": redis,
        "blob_url": redis,
        "otlp_endpoint": (r"https?://", "must be the URL of an OTLP/HTTP collector, such as http://host:4318"),
        "otlp_headers": (
            r"[^=,]+=[^=,]+(,[^=,]+=[^=,]+)*$",
            "must be a comma-separated list of name=value",
        ),
    }
    found = [
        Problem(PREFIX + key.upper(), masking.masked_url(getattr(settings, key)), problem)
        for key, (pattern, problem) in kinds.items()
        if getattr(settings, key) and not re.match(pattern, getattr(settings, key))
    ]
    if not found:
        for key in ("redis_url", "broker_url", "blob_url"):
            url = getattr(settings, key)
            if url and (problem := problem_of(url)):
                found.append(Problem(PREFIX + key.upper(), masking.masked_url(url), problem))
    return found


def _limits_out_of_order(settings: Settings) -> list[Problem]:
    found = []
    if not settings.free_rpm <= settings.paid_rpm <= settings.enterprise_rpm:
        found.append(
            Problem(
                f"{PREFIX}PAID_RPM",
                settings.paid_rpm,
                f"must be between {PREFIX}FREE_RPM ({settings.free_rpm}) and {PREFIX}ENTERPRISE_RPM "
                f"({settings.enterprise_rpm}): a higher tier has the higher rate",
            )
        )
    for unit in ("ms", "depth"):
        free, paid = getattr(settings, f"shed_free_{unit}"), getattr(settings, f"shed_paid_{unit}")
        if free > paid:
            found.append(
                Problem(
                    f"{PREFIX}SHED_FREE_{unit.upper()}",
                    free,
                    f"must not be above {PREFIX}SHED_PAID_{unit.upper()} ({paid}): the lower tier is refused first",
                )
            )
    for tier in (Tier.PAID, Tier.FREE):
        limit = settings.queue_timeout_of(tier)
        longest = {"ageing_ms": limit}
        if settings.admission == "drain":
            # A threshold is measured at the promised capacity, a timeout at the real one.
            longest[f"shed_{tier.value}_ms"] = limit * 100 // settings.capacity_percent
        for key, most in longest.items():
            # Only an explicit value is a problem; a default gives way, so that shortening a timeout needs no other
            # change.
            if getattr(settings, key) > most and getattr(settings, key) != _DEFAULTS[key]:
                found.append(
                    Problem(
                        PREFIX + key.upper(),
                        getattr(settings, key),
                        f"never takes effect, as requests of {tier.value} wait {limit} ms at most; stay below {most}, "
                        f"or raise {PREFIX}{tier.value.upper()}_QUEUE_TIMEOUT_MS",
                    )
                )
    return found
