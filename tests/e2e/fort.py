"""A stack with auth on, two owners and two operators, and the tools of an attacker."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests import issuer
from tests.e2e.client import Answer
from tests.e2e.stack import PATIENT, Stack
from tests.integration.http_server_harness import Answer as RawAnswer
from tests.integration.http_server_harness import Client
from tests.waiting import PATIENCE_S, wait_until

MODELS = """\
[models.echo]
source = "workers.models.echo:Echo"

[models.slow]
source = "workers.models.simulated:Simulated"
options = { batch_ms = 300, item_ms = 0 }
max_batch_size = 1

# Its exceptions say what was sent.
[models.moody]
source = "tests.models:Moody"
"""
FRONTENDS = 2
SERVICE_TOKEN = "the-token-of-those-who-run-it"
NEXT_TOKEN = "the-token-that-comes-after-it"
_addresses = (f"127.0.{1 + number // 250}.{1 + number % 250}" for number in count(2))


@dataclass
class Fort:
    """A stack with auth on, some keys, and a request of alice's. Each call comes from an address of its own."""

    stack: Stack
    secrets: dict[str, str] = field(default_factory=dict)
    task_id: str = ""

    def keys(self, *arguments: str) -> Any:
        done = self.stack.manage("keys", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def create(self, name: str, *options: str) -> str:
        """Create a key; returns its id."""
        made = self.keys("create", *options)
        self.secrets[name] = made["secret"]
        return str(made["id"])

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        address: str = "",
    ) -> Answer:
        source = (address or next(_addresses), 0)
        connection = http.client.HTTPConnection("127.0.0.1", self.stack.port, timeout=PATIENCE_S, source_address=source)
        with contextlib.closing(connection):
            sent = {**({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())

    def ask(
        self, name: str, method: str = "POST", path: str = "/v1/inference", body: bytes = b'{"input": 1}'
    ) -> Answer:
        return self.call(method, path, body if method == "POST" else None, bearer(self.secrets[name]))

    def is_known(self, name: str) -> set[bool]:
        """Return, for each frontend, whether it knows the key: connections are opened until all frontends have one.

        It requests an unknown path, which no limit of a key counts.
        """
        known: dict[str, bool] = {}
        with contextlib.ExitStack() as opened:

            def all_are_asked() -> bool:
                source = (next(_addresses), 0)
                connection = http.client.HTTPConnection("127.0.0.1", self.stack.port, PATIENCE_S, source_address=source)
                opened.enter_context(contextlib.closing(connection))
                connection.request("GET", "/healthz")
                process = json.loads(connection.getresponse().read())["process"]
                connection.request("GET", "/v1/result/nothing", None, bearer(self.secrets[name]))
                response = connection.getresponse()
                response.read()
                assert response.status in {401, 404, 503}
                known[process] = response.status == 404
                return len(known) >= FRONTENDS

            wait_until(all_are_asked, what="each frontend has taken a connection")
        return set(known.values())

    def is_known_everywhere(self, name: str) -> bool:
        return self.is_known(name) == {True}

    def raw(self, data: bytes) -> RawAnswer:
        with Client(self.stack.port) as client:
            return client.ask(data)

    def logged(self) -> str:
        files = [self.stack.state_dir.parent / "output.txt", *(self.stack.state_dir / "log").glob("*.log")]
        return "\n".join(each.read_text(errors="replace") for each in files)


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture(scope="module")
def fort(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fort]:
    folder = tmp_path_factory.mktemp("fort")
    issuer.write_jwks(folder / "jwks.json")
    each = Fort(Stack(folder, MODELS))
    settings = {
        "auth": "keys,jwt", "jwt_jwks": folder / "jwks.json", "jwt_secret": issuer.SECRET,
        "jwt_audience": issuer.AUDIENCE, "jwt_issuer": issuer.ISSUER,
        "service_token": f"ann:{SERVICE_TOKEN},ben:{NEXT_TOKEN}", "ledger_retention_days": 1, "log_level": "DEBUG",
    }  # fmt: skip
    try:
        each.stack.start(f"--web-workers={FRONTENDS}", "--workers=1", "--no-flower", **settings, **PATIENT)
        each.create("alice", "--tier", "paid", "--owner", "alice")
        each.create("alice again", "--tier", "free", "--owner", "alice")
        each.create("bob", "--tier", "enterprise", "--owner", "bob")
        each.create("expired", "--tier", "paid", "--expires-in-days", "0.000001")
        revoked = each.create("revoked", "--tier", "paid")
        each.keys("revoke", revoked)
        for name in ("alice", "alice again", "bob"):
            wait_until(partial(each.is_known_everywhere, name), what=f"the key of {name} is known")
        wait_until(lambda: each.is_known("revoked") == {False}, what="the revoked one is known to be")
        each.secrets["service"] = SERVICE_TOKEN
        queued = each.call(
            "POST", "/v1/inference", b'{"input": "alice\'s"}',
            {**bearer(each.secrets["alice"]), "Prefer": "respond-async", "X-Request-Id": "mine"},
        )  # fmt: skip
        each.task_id = queued.json["task_id"]
        yield each
        each.stack.stop()
    finally:
        each.stack.kill()
