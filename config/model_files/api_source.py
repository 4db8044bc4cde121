"""A fixed HTTP API as a model's source: its options, checked before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from config.auth import is_loopback
from config.errors import Problem
from config.secrets.masking import MASK, masked_url
from config.secrets.secret_settings import header_problem, names_in_environment

TLS_FILES = ("ca_file", "cert_file", "key_file")
_CREDENTIAL = re.compile(r"authorization|cookie|api[-_]?key|token|secret|password", re.IGNORECASE)


def read_options(where: str, options: dict[str, Any], folder: Path, problems: list[Problem]) -> dict[str, Any]:
    """Read `options.headers`: relative files are looked up from the folder of `bunch.toml`."""
    headers = options.get("headers")
    if headers is None:
        return options
    if not isinstance(headers, dict):
        problems.append(Problem(f"{where} options.headers", MASK, "must be a table of header names and values"))
        return options
    found = {name: header_problem(value) for name, value in headers.items()}
    problems += [Problem(f"{where} options.headers.{name}", MASK, fix) for name, fix in found.items() if fix]
    absolute = {
        name: {"file": str(folder.resolve() / value["file"])} if isinstance(value, dict) and "file" in value else value
        for name, value in headers.items()
        if not found[name]
    }
    return {**options, "headers": absolute}


def is_callable(address: str) -> bool:
    """Return whether a URL, which may have an adapter, names a host and no impossible port."""
    try:
        url = urlsplit(address[address.index("http") :])
        return bool(url.hostname) and url.port != 0
    except ValueError:
        return False


def source_of(table: Mapping[str, Any]) -> Any:
    """The source of a model: the first of its `urls` where it names none."""
    urls = table.get("urls")
    return table.get("source", urls[0] if isinstance(urls, list) and urls else "")


def read_keys(
    where: str, values: dict[str, Any], folder: Path, problems: list[Problem], pattern: re.Pattern[str]
) -> None:
    """Complete `urls`, which need not repeat the adapter of the source, and look up TLS files from `folder`."""
    source = values["source"]
    for key, address in [("source", source), *(("urls", each) for each in values.get("urls", ()))]:
        if re.match(r"([a-z]+:)?https?://", address) and not is_callable(address):
            # Where a part ends is not known, so none is shown: it may be a password.
            shown = f"{address.partition('://')[0]}://{MASK}"
            fix = "must name a host and, if any, a port from 1 to 65535; write special characters of a password as %XX"
            problems.append(Problem(f"{where} {key}", shown, fix))
    adapter = source.partition("http")[0] if re.match(r"[a-z]+:https?://", source) else ""
    urls = tuple(url if url.startswith(adapter) else adapter + url for url in values.get("urls", ()))
    if urls:
        values["urls"] = urls
    bad = [url for url in urls if not pattern.fullmatch(url)]
    if bad:
        fix = "must be URLs like the source, each a replica of the same API; with a class as the source, remove them"
        problems.append(Problem(f"{where} urls", ", ".join(masked_url(each) for each in bad), fix))
    for key in TLS_FILES:
        if values.get(key):
            values[key] = str(folder.resolve() / values[key])


def variables(options: Mapping[str, Any]) -> frozenset[str]:
    """The environment variables that hold credentials for the API."""
    return names_in_environment(options.get("headers", {}))


def cautions(where: str, address: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """The warnings about an API at `address`, each with its remedy. No secret is shown."""
    url = urlsplit(address[address.index("http") :])
    headers = options.get("headers", {})
    named = [*headers, url.query] if isinstance(headers, dict) else [url.query]
    has_credential = bool(url.username or url.password) or any(_CREDENTIAL.search(each) for each in named)
    if has_credential and url.scheme == "http" and not is_loopback(url.hostname or ""):
        yield Problem(f"{where} source", f"http://{url.hostname}", "its credential is sent unencrypted; use https://")
    if options.get("verify", True) is False:
        yield Problem(
            f"{where} options",
            "verify = false",
            "anyone on the network path can read and change everything, the credential too; remove verify",
        )
