"""`manage.py` from outside: exit codes, one-line errors, `check`, and what needs no running stack."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.run.check_servers import must_have_password
from cli.supervisor.ports import free_port
from cli.supervisor.state import ProcessRow, UpLock, UpState, write
from config.process.devices import this_machine
from config.settings import Settings
from tasks.fleet.desired_state import DesiredState
from tests.shards import ON_CLUSTER, inherited_environment, redis_settings
from tests.valkey import PrivateValkey

ROOT = Path(__file__).parents[2]
COMMANDS = (
    *("up", "demo", "status", "web", "worker", "ops", "flower"),
    *("check", "queues", "workers", "models", "keys", "reset", "bench"),
)
ECHO = '[models.echo]\nsource = "workers.models.echo:Echo"\n'


class Manage:
    """Runs commands with a state folder and a bunch.toml of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config("")

    def config(self, text: str) -> None:
        (self.folder / "bunch.toml").write_text(text or ECHO)

    def __call__(
        self, *arguments: str, stdout: int = subprocess.PIPE, **settings: object
    ) -> subprocess.CompletedProcess[str]:
        inherited = inherited_environment()
        named = {f"BUNCH_{key.upper()}": str(value) for key, value in settings.items()}
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            cwd=self.folder,
            env=inherited | {"BUNCH_STATE_DIR": str(self.folder / "var")} | named,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    return Manage(tmp_path)


def problems(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return {each["key"]: each["fix"] for each in json.loads(done.stdout)["problems"]}


def test_help_is_everywhere(manage: Manage) -> None:
    listed = manage("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in listed
        assert manage(command, "--help").returncode == 0


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("up", "--port", "x"), ("bench", "--rps", "1", "--concurrency", "1")]
)
def test_wrong_usage_exits_with_2(manage: Manage, arguments: tuple[str, ...]) -> None:
    assert manage(*arguments).returncode == 2


def test_nothing_running_is_said_with_what_to_do(manage: Manage) -> None:
    for command in ("queues", "workers", "models", "web", "worker", "ops", "flower", "bench"):
        done = manage(command)
        assert done.returncode == 1
        assert "manage.py up" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    status = manage("status", "--json")
    assert (status.returncode, json.loads(status.stdout)["processes"]) == (1, [])


def test_debug_shows_where_an_error_came_from(manage: Manage) -> None:
    assert "Traceback" not in manage("queues").stderr
    assert "Traceback" in manage("--debug", "queues").stderr


def test_a_bad_setting_stops_every_command_with_all_problems(manage: Manage) -> None:
    done = manage("up", http_port="99999", web_wrokers="2")
    assert done.returncode == 1
    assert "BUNCH_HTTP_PORT" in done.stderr
    assert "BUNCH_WEB_WROKERS" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_stops_up_before_anything_is_started(manage: Manage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = manage("up", "--port", str(port))
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "--port" in done.stderr
    assert not (manage.folder / "var" / "log").exists()


def test_check_is_content_with_what_is_right(manage: Manage) -> None:
    done = manage("check", http_port="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "echo" in done.stdout


def test_check_says_what_an_automatic_device_is_here(manage: Manage) -> None:
    manage.config('[models.a]\nsource = "workers.models.echo:Echo"\ninstances = 2\n')
    auto = this_machine().auto
    assert f'device = "auto" is {auto} here' in manage("check", http_port="0").stdout
    devices = json.loads(manage("check", "--json", http_port="0").stdout)["devices"]
    assert [each.split()[0] for each in devices["a"]] == [auto, auto]


def test_check_finds_everything_at_once(manage: Manage, valkey: PrivateValkey) -> None:
    manage.config(
        '[models.gone]\nsource = "no_such_module:Model"\n'
        '[models.empty]\nsource = "workers.models.echo:Nothing"\n'
        '[models.wrong]\nsource = "workers.models.echo:Echo"\noptions = { colour = "red" }\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = manage(
            "check", "--json", http_port=port, redis_url="redis://:secret@127.0.0.1:1/0", broker_url=valkey.url
        )
    assert done.returncode == 1
    assert set(problems(done)) == {
        "BUNCH_REDIS_URL",
        "[models.gone] source",
        "[models.empty] source",
        "[models.wrong] source",
        "BUNCH_HTTP_PORT",
    }
    assert "secret" not in done.stdout


def test_check_finds_a_server_that_would_throw_requests_away(manage: Manage, valkey: PrivateValkey) -> None:
    with valkey.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            done = manage("check", "--json", http_port="0", **redis_settings(valkey.url))
        finally:
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")
    assert "noeviction" in problems(done)["BUNCH_BROKER_URL" if ON_CLUSTER else "BUNCH_REDIS_URL"]


@pytest.mark.parametrize("command", ["check", "up", "web", "worker"])
def test_a_cluster_is_refused_before_anything_starts(manage: Manage, cluster: PrivateValkey, command: str) -> None:
    done = manage(command, http_port="0", redis_url=cluster.url)
    assert done.returncode == 1
    assert "is a node of a Redis Cluster" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[PrivateValkey]:
    # A port of its own for the nodes' talk: by default it is 10,000 above the first, which may be no port at all.
    server = PrivateValkey("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    server.start()
    yield server
    server.stop()


def test_a_model_beside_its_bunch_toml_is_found(manage: Manage) -> None:
    elsewhere = manage.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.py").write_text("def shout(inputs: list[str]) -> list[str]:\n    return inputs\n")
    (elsewhere / "bunch.toml").write_text('[models.mine]\nsource = "mine:shout"\n')
    done = manage("check", "--config", str(elsewhere / "bunch.toml"), http_port="0")
    assert done.returncode == 0, done.stdout


def test_check_finds_methods_that_cannot_be_called_and_models_that_end_their_process(manage: Manage) -> None:
    (manage.folder / "odd.py").write_text(
        "class Few:\n    def load(self, device): ...\n    def predict(self, inputs): return inputs\n\n"
        "class Coroutine:\n    def load(self, device): ...\n    async def predict(self, inputs, parameters): ...\n\n"
        "def yields(inputs):\n    yield from inputs\n"
    )
    (manage.folder / "ends.py").write_text("import os\nos._exit(3)\n")
    (manage.folder / "config.py").write_text("NAME = 'theirs'\n")
    (manage.folder / "fine.py").write_text("import config\nNAME = config.NAME\ndef batch(inputs): return inputs\n")
    manage.config(
        "".join(
            f'[models.{name}]\nsource = "{source}"\n'
            for name, source in {
                "few": "odd:Few", "async": "odd:Coroutine", "yields": "odd:yields", "ends": "ends:Model",
                "fine": "fine:batch",
            }.items()
        )
    )  # fmt: skip
    done = manage("check", "--json", http_port="0")
    assert done.returncode == 1
    found = problems(done)
    assert set(found) == {f"[models.{name}] source" for name in ("few", "async", "yields", "ends")}
    assert "write def predict(self, inputs, parameters)" in found["[models.few] source"]
    assert "is async" in found["[models.async] source"]
    assert "write def batchstring(inputs)" in found["[models.yields] source"]
    assert "ended while it imported" in found["[models.ends] source"]


def test_tables_of_an_empty_fleet(manage: Manage, valkey: PrivateValkey) -> None:
    with valkey.client() as client:
        client.flushdb()
    queues = manage("queues", "--json", **redis_settings(valkey.url))
    assert queues.returncode == 0
    assert json.loads(queues.stdout)[0] == {
        "model": "echo",
        "tier": "enterprise",
        "depth": 0,
        "oldest_ms": 0,
        "arrival_rps": 0.0,
    }
    workers = manage("workers", "--json", **redis_settings(valkey.url))
    assert (workers.returncode, json.loads(workers.stdout)) == (1, [])
    models = manage("models", "--json", **redis_settings(valkey.url))
    assert models.returncode == 1
    assert json.loads(models.stdout)[0]["ready"] == 0


def test_a_file_that_is_not_there_is_named_as_it_was_given(manage: Manage) -> None:
    assert "--config" in problems(manage("check", "--json", "--config", "nowhere.toml"))
    assert "BUNCH_CONFIG" in problems(manage("check", "--json", config="nowhere.toml"))


def test_what_can_be_chosen_is_said(manage: Manage) -> None:
    manage.config(ECHO + 'policy = "best"\n')
    assert "adaptive, idle, fixed" in problems(manage("check", "--json"))["[models.echo] policy"]


def test_flower_on_a_taken_port_is_one_line(manage: Manage, valkey: PrivateValkey) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = manage("flower", **redis_settings(valkey.url), flower_port=str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_says_why_nothing_was_answered(manage: Manage) -> None:
    with socket.socket() as silent:
        # Bound, so that no other program gets the port, and not listening.
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        # With fewer expected arrivals, once in a few hundred runs none would come at all.
        done = manage("bench", "--url", url, "--rps=100", "--duration=0.3")
    assert done.returncode == 1
    assert "no answer: check the server" in done.stderr


def test_a_reload_that_was_refused_is_shown_with_its_reason(manage: Manage, valkey: PrivateValkey) -> None:
    with valkey.client() as client:
        client.flushdb()
        controls = DesiredState(client)
        controls.refuse("echo", controls.reload("echo", {"source": "nowhere:X"}).generation, "no module 'nowhere'")
    shown = manage("models", **redis_settings(valkey.url)).stdout
    assert "the reload of echo was refused; the previous version keeps running:\nno module 'nowhere'" in shown
    paused = manage("pause", "echo", "--tier=free", **redis_settings(valkey.url)).stdout
    assert "paused           free\n" in paused
    assert "max_wait_ms      –\n" in paused


def test_a_reader_that_has_seen_enough_is_no_error(manage: Manage) -> None:
    """`manage.py … | head`."""
    nobody_reads, ours = os.pipe()
    os.close(nobody_reads)
    try:
        done = manage("simulate", "--rps=20", "--duration=1", "--policy=idle", stdout=ours)
    finally:
        os.close(ours)
    assert "Error" not in done.stderr


def test_models_are_those_of_the_running_up_unless_a_file_is_named(manage: Manage, valkey: PrivateValkey) -> None:
    """`up --config other.toml` and a `queues` beside it would otherwise mean different models."""
    served = manage.folder / "served.toml"
    served.write_text(ECHO.replace("models.echo", "models.served"))
    state_dir = manage.folder / "var"

    def shown(*arguments: str, **settings: object) -> set[str]:
        return {row["model"] for row in json.loads(manage("queues", "--json", *arguments, **settings).stdout)}

    with UpLock(state_dir):
        urls = {name: url for name, url in redis_settings(valkey.url).items() if name.endswith("_url")}
        write(state_dir, UpState(**urls, config_file=str(served)))
        assert shown() == {"served"}
        assert shown(config="bunch.toml") == {"echo"}
        assert shown("--config", "bunch.toml") == {"echo"}
        assert manage("pause", "served").returncode == 0
        assert manage("resume", "served").returncode == 0
        # Of another server the `up` of this folder knows nothing.
        assert shown(redis_url=valkey.url.replace("127.0.0.1", "localhost")) == {"echo"}
    assert shown(**redis_settings(valkey.url)) == {"echo"}


@pytest.mark.parametrize("auth", ["off", "keys"])
def test_check_warns_of_a_server_that_lets_everybody_in(manage: Manage, valkey: PrivateValkey, auth: str) -> None:
    """On loopback: who may ask there may be known."""
    done = manage("check", "--json", http_port="0", **redis_settings(valkey.url), auth=auth)
    warnings = json.loads(done.stdout)["warnings"]
    (warning,) = [each for each in warnings if "without a password" in each["fix"]]
    # A cluster of the tests has a password. What else there is to say of it: tests/integration/test_check_cluster.py.
    assert (done.returncode, warning["key"]) == (0, "BUNCH_BROKER_URL" if ON_CLUSTER else "BUNCH_REDIS_URL")
    assert ON_CLUSTER or warnings == [warning]


def test_check_has_nothing_to_say_of_a_server_with_a_password(manage: Manage) -> None:
    server = PrivateValkey("--requirepass", "a-secret")
    server.url = server.url.replace("//", "//:a-secret@")
    server.start()
    try:
        done = manage("check", "--json", http_port="0", redis_url=server.url, auth="keys")
        shown = manage("check", http_port="0", redis_url=server.url, auth="keys").stdout
    finally:
        server.stop()
    told = json.loads(done.stdout)
    assert (told["ok"], told["problems"], told["warnings"]) == (True, [], [])
    assert "a-secret" not in done.stdout + shown


def test_with_keys_a_server_beyond_loopback_must_ask_for_a_password(valkey: PrivateValkey) -> None:
    settings = Settings(auth="keys", redis_url="redis://192.0.2.1/0")
    assert must_have_password(settings, settings.redis_url)
    assert not must_have_password(settings, valkey.url)
    assert not must_have_password(settings, "unix:///run/valkey.sock?db=0")
    assert not must_have_password(Settings(), settings.redis_url)


def test_status_shows_no_secret_of_a_server_that_was_configured(manage: Manage) -> None:
    state_dir = manage.folder / "var"
    configured = "redis://user:a-secret@redis.example:6379/0"
    broker = "redis://:another-secret@broker.example:6379/3"
    with UpLock(state_dir):
        write(state_dir, UpState(redis_url=configured, broker_url=broker))
        for options in ((), ("--json",)):
            done = manage("status", *options)
            assert "a-secret" not in done.stdout
            assert "another-secret" not in done.stdout
            assert "redis.example" in done.stdout
        document = json.loads(manage("status", "--json").stdout)
    assert document["redis_url"] == configured.replace("a-secret", "…")
    assert document["broker_url"] == broker.replace("another-secret", "…")


def test_status_tells_the_password_of_the_embedded_server_and_of_no_other(manage: Manage) -> None:
    """It is made up at each start and stands nowhere else."""
    state_dir = manage.folder / "var"
    embedded = "redis://:made-up@127.0.0.1:6379/0"
    rows = (ProcessRow("redis", 1, "running", 0, "valkey"),)
    with UpLock(state_dir):
        for broker, shown in (
            (embedded, embedded),
            ("redis://:a-secret@broker.example/0", "redis://:…@broker.example/0"),
        ):
            write(state_dir, UpState(rows, redis_url=embedded, broker_url=broker))
            document = json.loads(manage("status", "--json").stdout)
            assert (document["redis_url"], document["broker_url"]) == (embedded, shown)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ('[models.gone]\nsource = "workers.models.echo:Gone"\n', "[models.gone] source"),
        ('[models.a]\nsource = "noisy:Model"\n', "[models.a] source"),
        ('[models.a]\nsource = "workers.models.echo:Echo"\npolicy_options = { colour = 1 }\n', "colour"),
    ],
)
def test_up_starts_nothing_with_what_check_finds(manage: Manage, config: str, key: str) -> None:
    manage.config(config)
    (manage.folder / "noisy.py").write_text("print('a word of the module')\nraise RuntimeError('half a module')\n")
    done = manage("up", "--port=0", "--no-flower")
    assert done.returncode == 1
    assert key in done.stderr
    assert "starting" not in done.stdout
    assert "a word of the module" not in done.stdout
    assert not (manage.folder / "var" / "log").exists()


def test_what_a_module_prints_is_no_part_of_the_json(manage: Manage) -> None:
    (manage.folder / "noisy.py").write_text(
        "print('a word')\ndef model(inputs: list[str]) -> list[str]: return inputs\n"
    )
    manage.config('[models.a]\nsource = "noisy:model"\n')
    assert json.loads(manage("check", "--json", http_port="0").stdout)["ok"]
