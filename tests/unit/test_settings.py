"""Settings: what wins over what, and that everything wrong is said at once with its fix."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.errors import Problem, SettingsError
from config.settings import ModelSettings, Settings, is_loopback, load_settings
from config.tiers import TIERS, Tier
from tests.configs import problems_of

MODEL = '[models.echo]\nsource = "workers.models.echo:Echo"\n'


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from the checkout's own `bunch.toml`."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bunch_toml(tmp_path: Path):
    """`bunch_toml(text)` writes the file and gives its path."""

    def write(text: str) -> str:
        path = tmp_path / "bunch.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_files_of_tls_are_beside_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "bunch.toml").write_text('[server]\ntls_cert = "tls/cert.pem"\ntls_key = "/run/key.pem"\n')
    settings = load_settings({}, str(tmp_path / "bunch.toml"))
    assert (settings.tls_cert, settings.tls_key) == (str(tmp_path / "tls/cert.pem"), "/run/key.pem")


def test_environment_over_file_over_default(bunch_toml) -> None:
    file = bunch_toml("[server]\nhttp_port = 9001\nweb_workers = 7\n" + MODEL)
    settings = load_settings({"BUNCH_HTTP_PORT": "9002"}, file)
    assert settings.http_port == 9002
    assert settings.web_workers == 7
    assert settings.http_host == Settings().http_host == "127.0.0.1"


def test_the_environment_names_the_file(bunch_toml) -> None:
    file = bunch_toml("[server]\nhttp_port = 9001\n" + MODEL)
    assert load_settings({"BUNCH_CONFIG": file}).http_port == 9001
    assert load_settings({"BUNCH_CONFIG": file}).config_file == file


def test_values_arrive_in_their_types(bunch_toml) -> None:
    settings = load_settings(
        {"BUNCH_DEFAULT_TIER": "free", "BUNCH_RESULT_TTL_MS": "1500", "PATH": "/bin"}, bunch_toml(MODEL)
    )
    assert settings.default_tier is Tier.FREE
    assert settings.result_ttl_s == 1.5


@pytest.mark.parametrize("seconds", ["request_timeout", "queue_timeout", "result_ttl", "lease_ttl", "graceful_timeout"])
def test_milliseconds_outside_are_seconds_inside(seconds: str) -> None:
    assert getattr(Settings(**{f"{seconds}_ms": 2500}), f"{seconds}_s") == 2.5


def test_a_models_table(bunch_toml) -> None:
    file = bunch_toml(
        'default_model = "b"\n' + MODEL + '[models.b]\nsource = "https://api.example/v1"\nmax_wait_ms = 250\n'
        "max_batch_size = 8\noptions = { batch_ms = 50 }\n"
    )
    settings = load_settings({}, file)
    assert list(settings.models) == ["echo", "b"]
    assert settings.models["b"] == ModelSettings(
        name="b", source="https://api.example/v1", max_wait_ms=250, max_batch_size=8, options={"batch_ms": 50}
    )
    assert settings.models["b"].max_wait_s == 0.25
    assert settings.default_model == "b"


def test_the_first_model_is_the_default_one(bunch_toml) -> None:
    assert load_settings({}, bunch_toml(MODEL)).default_model == "echo"


def test_every_kind_of_problem_is_reported_at_once(bunch_toml) -> None:
    file = bunch_toml(
        'default_model = "absent"\n'
        "colour = 1\n"
        "[server]\n"
        'web_workers = "two"\n'
        "speed = 5\n" + MODEL + "[models.Upper]\n"
        'source = "a:B"\n'
        "[models.slow]\n"
        'source = "a:B"\n'
        "max_wait_ms = 20000\n"
        "max_batch_size = 0\n"
        "color = 1\n"
        "[models.sourceless]\n"
    )
    found = problems_of(
        {
            "BUNCH_HTTP_PORT": "70000",
            "BUNCH_REDIS_ULR": "redis://h",
            "BUNCH_HTTP_HOST": "0.0.0.0",
            "BUNCH_FLOWER_HOST": "10.0.0.1",
            "BUNCH_BROKER_URL": "amqp://guest:secret@rabbit:5672//",
            "BUNCH_LOG_LEVEL": "LOUD",
        },
        file,
    )
    assert set(found) == {
        "default_model",
        "colour",
        "[server] web_workers",
        "[server] speed",
        "[models.Upper]",
        "[models.slow] max_wait_ms",
        "[models.slow] max_batch_size",
        "[models.slow] color",
        "[models.sourceless] source",
        "BUNCH_HTTP_PORT",
        "BUNCH_REDIS_ULR",
        "BUNCH_HTTP_HOST",
        "BUNCH_FLOWER_HOST",
        "BUNCH_BROKER_URL",
        "BUNCH_LOG_LEVEL",
    }


@pytest.mark.parametrize(
    ("environ", "key", "value", "fix"),
    [
        ({"BUNCH_HTTP_PORT": "http"}, "BUNCH_HTTP_PORT", "'http'", "int"),
        ({"BUNCH_HTTP_PORT": "65536"}, "BUNCH_HTTP_PORT", "'65536'", "<= 65535"),
        ({"BUNCH_WEB_WORKERS": "0"}, "BUNCH_WEB_WORKERS", "'0'", ">= 1"),
        ({"BUNCH_LEASE_TTL_MS": "10"}, "BUNCH_LEASE_TTL_MS", "'10'", ">= 1000"),
        ({"BUNCH_DEFAULT_TIER": "gold"}, "BUNCH_DEFAULT_TIER", "'gold'", "gold"),
        ({"BUNCH_HTPP_PORT": "1"}, "BUNCH_HTPP_PORT", "'1'", "BUNCH_HTTP_PORT"),
        ({"BUNCH_HTTP_HOST": "0.0.0.0"}, "BUNCH_HTTP_HOST", "0.0.0.0", "loopback"),
        ({"BUNCH_GRPC_HOST": "0.0.0.0"}, "BUNCH_GRPC_HOST", "0.0.0.0", "loopback"),
        ({"BUNCH_FLOWER_HOST": "0.0.0.0"}, "BUNCH_FLOWER_HOST", "0.0.0.0", "BUNCH_FLOWER_BASIC_AUTH"),
        ({"BUNCH_REDIS_URL": "localhost:6379"}, "BUNCH_REDIS_URL", "localhost:6379", "redis://"),
        ({"BUNCH_CONFIG": "/nowhere/bunch.toml"}, "BUNCH_CONFIG", "/nowhere/bunch.toml", "no such file"),
    ],
)
def test_a_problem_names_its_key_the_value_and_the_fix(environ: dict[str, str], key: str, value: str, fix: str) -> None:
    line = problems_of(environ)[key]
    assert line.startswith(key)
    assert value in line
    assert fix in line


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("server = 5\n", "[server]"),
        ("models = 5\n", "[models]"),
        ("[models]\necho = 5\n", "[models.echo]"),
        ("default_model = 5\n" + MODEL, "default_model"),
        ("[models.echo]\nsource = 5\n", "[models.echo] source"),
        ('[models.echo]\nsource = "no colon"\n', "[models.echo] source"),
        ('[models."a.b"]\nsource = "a:B"\n', "[models.a.b]"),
    ],
)
def test_a_file_of_another_shape_is_a_problem_not_a_crash(bunch_toml, text: str, key: str) -> None:
    assert key in problems_of({}, bunch_toml(text))


def test_broken_toml_is_one_of_the_problems(bunch_toml) -> None:
    file = bunch_toml("[server\n")
    found = problems_of({"BUNCH_HTTP_PORT": "x"}, file)
    assert "TOML" in found[file]
    assert "BUNCH_HTTP_PORT" in found


def test_a_file_does_not_take_numbers_as_text(bunch_toml) -> None:
    assert "[server] http_port" in problems_of({}, bunch_toml('[server]\nhttp_port = "9000"\n' + MODEL))


def test_no_password_is_printed(bunch_toml) -> None:
    found = problems_of(
        {"BUNCH_REDIS_URL": "http://user:hunter2@host"}, bunch_toml("[server]\nflower_basic_auth = 7\n")
    )
    assert "hunter2" not in "\n".join(found.values())
    assert "7" not in found["[server] flower_basic_auth"]


@pytest.mark.parametrize("line", ["max_memory_bytes = 36893488147419103232", "options = { n = 36893488147419103232 }"])
def test_a_number_that_does_not_fit_a_frame_is_found_here(bunch_toml, line: str) -> None:
    with pytest.raises(SettingsError, match=r"\[models.echo\].*64 bits"):
        load_settings({}, bunch_toml(MODEL + line + "\n"))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("3", "must be a list of { name, datatype, shape }"),
        ("[]", "length >= 1"),
        ('[{ name = "a", datatype = "FP31" }]', "BF16, FP32, FP64"),
        ('[{ name = "a", datatype = "FP32", shape = [-2] }]', "shape[0]"),
        ('[{ name = "a", datatype = "FP32" }, { name = "a", datatype = "BOOL" }]', "must have different names"),
    ],
)
def test_a_models_tensors_are_told_how_they_must_be(bunch_toml, inputs: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({}, bunch_toml(MODEL + f"inputs = {inputs}\n"))
    assert "[models.echo] inputs" in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize("limit", ["BUNCH_REQUEST_TIMEOUT_MS", "BUNCH_QUEUE_TIMEOUT_MS"])
def test_a_model_may_not_gather_longer_than_requests_wait(bunch_toml, limit: str) -> None:
    file = bunch_toml(MODEL + "max_wait_ms = 1900\n")
    assert load_settings({limit: "1901"}, file).models["echo"].max_wait_ms == 1900
    line = problems_of({limit: "1900"}, file)["[models.echo] max_wait_ms"]
    assert limit in line


@pytest.mark.parametrize("name", ["RESULT_TTL_MS", "SYNC_RESULT_TTL_MS", "REQUEST_TIMEOUT_MS", "QUEUE_TIMEOUT_MS"])
def test_times_fit_the_fields_of_a_message(name: str) -> None:
    assert f"BUNCH_{name}" in problems_of({f"BUNCH_{name}": "1000000000"})


@pytest.mark.parametrize("url", ["redis://h:6379/0", "rediss://h", "unix:///run/r.sock?db=1", "redis+socket:///r.sock"])
def test_redis_urls(url: str, bunch_toml) -> None:
    settings = load_settings({"BUNCH_REDIS_URL": url}, bunch_toml(MODEL))
    assert settings.control_url == settings.redis_url == url


def test_the_control_plane_may_have_a_broker_of_its_own() -> None:
    assert Settings(redis_url="redis://a", broker_url="redis://b").control_url == "redis://b"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False),
    ],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_characters="\0="), min_size=1).map(lambda name: "BUNCH_" + name),
        st.text(),
        max_size=5,
    )
)
def test_no_environment_breaks_the_reader(environ: dict[str, str]) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        load_settings({name: value for name, value in environ.items() if name != "BUNCH_CONFIG"})
    except SettingsError as error:
        problems = error.problems
    # Problems between settings name them as they are written in the documentation; one may be missing.
    known = {f"BUNCH_{name.upper()}" for name in Settings.__struct_fields__}
    assert {each.key.upper() for each in problems} <= known | {name.upper() for name in environ}


def test_tiers_rank_in_the_order_in_which_they_are_served() -> None:
    assert [tier.value for tier in TIERS] == ["enterprise", "paid", "free"]
    assert [tier.rank for tier in TIERS] == [0, 1, 2]


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Settings().http_port = 1  # type: ignore[misc]
    assert msgspec.structs.asdict(Settings())["http_port"] == 8000


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({"SHED_FREE_MS": "2000"}, "BUNCH_SHED_FREE_MS"),
        ({"SHED_FREE_DEPTH": "501"}, "BUNCH_SHED_FREE_DEPTH"),
        ({"SHED_PAID_MS": "2900"}, "BUNCH_SHED_PAID_MS"),
        ({"SHED_PAID_MS": "1600", "PAID_QUEUE_TIMEOUT_MS": "1000"}, "BUNCH_SHED_PAID_MS"),
        ({"AGEING_MS": "2001"}, "BUNCH_AGEING_MS"),
        ({"AGEING_MS": "600", "FREE_QUEUE_TIMEOUT_MS": "550"}, "BUNCH_AGEING_MS"),
        ({"CAPACITY_PERCENT": "101"}, "BUNCH_CAPACITY_PERCENT"),
        ({"FREE_RPM": "1001"}, "BUNCH_PAID_RPM"),
        ({"PAID_RPM": "1000001"}, "BUNCH_PAID_RPM"),
        ({"ADMISSION": "never"}, "BUNCH_ADMISSION"),
    ],
)
def test_thresholds_that_contradict_each_other_or_could_not_take_effect(environ: dict[str, str], key: str) -> None:
    assert key in problems_of({f"BUNCH_{name}": value for name, value in environ.items()})


@pytest.mark.parametrize(
    "environ",
    [
        {"QUEUE_TIMEOUT_MS": "100"},
        {"SHED_FREE_MS": "700", "SHED_PAID_MS": "700"},
        {"SHED_PAID_MS": "2800"},
        {"ADMISSION": "off", "SHED_PAID_MS": "9000", "SHED_FREE_MS": "9000"},
    ],
)
def test_thresholds_that_are_fine(environ: dict[str, str]) -> None:
    load_settings({f"BUNCH_{name}": value for name, value in environ.items()})


def test_the_largest_batch_is_the_largest_size_unless_it_is_set(tmp_path: Path) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text(
        MODEL + "batch_sizes = [1, 8]\n[models.b]\nsource = 'a:B'\nbatch_sizes = [1, 8]\nmax_batch_size = 5\n"
    )
    models = load_settings({"BUNCH_CONFIG": str(path)}).models
    assert (models["echo"].max_batch_size, models["b"].max_batch_size) == (8, 5)


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("batch_sizes = [8, 4]", "batch_sizes"),
        ("batch_sizes = [4, 4]", "batch_sizes"),
        ("batch_sizes = [0, 4]", "batch_sizes"),
        ("length_buckets = [100, 10]", "length_buckets"),
        ("batch_sizes = [4, 8]\nmax_batch_cost = 100", "batch_sizes"),
        ("batch_sizes = [4, 8]\nmax_batch_size = 9", "max_batch_size"),
        ('warmup_input = "text"', "warmup_input"),
    ],
)
def test_shapes_that_contradict_each_other(tmp_path: Path, lines: str, key: str) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text(MODEL + lines + "\n")
    assert f"[models.echo] {key}" in problems_of({"BUNCH_CONFIG": str(path)})


def test_a_remote_model_has_no_sizes_and_no_spare(tmp_path: Path) -> None:
    path = tmp_path / "bunch.toml"
    path.write_text('[models.api]\nsource = "https://api.example/v1"\nbatch_sizes = [1, 8]\nspare = true\n')
    assert {"[models.api] batch_sizes", "[models.api] spare"} <= problems_of({"BUNCH_CONFIG": str(path)}).keys()


def test_a_tiers_own_queue_timeout_goes_before_the_common_one() -> None:
    settings = load_settings({"BUNCH_QUEUE_TIMEOUT_MS": "3000", "BUNCH_FREE_QUEUE_TIMEOUT_MS": "1000"})
    assert [settings.queue_timeout_of(tier) for tier in TIERS] == [3000, 3000, 1000]


def test_the_shipped_models_are_what_the_readme_says() -> None:
    shipped = load_settings({"BUNCH_CONFIG": str(Path(__file__).parents[2] / "bunch.toml")})
    assert shipped.default_model == "minilm"
    assert shipped.models["minilm"].cache
    assert not shipped.models["echo"].cache
