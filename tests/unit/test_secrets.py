"""Secrets in files, which role is given which, and that no message has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.schema import Settings
from config.secrets.secret_settings import HOLDERS, SECRET_FIELDS, NoSecret, header_values, read_secret
from config.settings import load_settings
from tests.configs import problems_of

# A value of each that its own rules take.
GOOD = {
    "redis_url": "redis://:hunter2hunter2@h:1/0",
    "broker_url": "redis://:hunter2hunter2@h:1/1",
    "blob_url": "redis://:hunter2hunter2@h:1/2",
    "service_token": "hunter2hunter2hunter2",
    "jwt_secret": "hunter2" * 6,
    "message_secret": "hunter2" * 6,
    "message_secret_previous": "hunter2" * 6,
    "callback_secret": "hunter2" * 6,
    "database_url": "postgresql://u:hunter2@h/d",
    "flower_basic_auth": "me:hunter2",
    "otlp_headers": "authorization=hunter2",
}


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_secret_is_tried_here_and_held_by_somebody() -> None:
    assert set(GOOD) == SECRET_FIELDS <= set(Settings.__struct_fields__)
    assert all(HOLDERS.values())


@pytest.mark.parametrize("field", sorted(SECRET_FIELDS))
def test_any_secret_may_be_in_a_file(field: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(GOOD[field] + "\n")
    for environ in ({f"BUNCH_{field.upper()}_FILE": str(file)}, {f"BUNCH_{field.upper()}_FILE": "secret"}):
        assert getattr(load_settings(environ), field) == GOOD[field]


@pytest.mark.parametrize("field", sorted(SECRET_FIELDS))
def test_a_secret_given_twice_is_an_error_that_names_both(field: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(GOOD[field])
    name = f"BUNCH_{field.upper()}"
    line = problems_of({name: GOOD[field], f"{name}_FILE": str(tmp_path / "secret")})[f"{name}_FILE"]
    assert f"{name} is set as well" in line
    assert "hunter2" not in line


def test_bunch_toml_may_name_a_file_that_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "token").write_text(GOOD["service_token"])
    config = tmp_path / "conf" / "bunch.toml"
    config.write_text('[server]\nservice_token_file = "token"\n')
    assert load_settings({}, str(config)).service_token == GOOD["service_token"]
    assert load_settings({"BUNCH_SERVICE_TOKEN": "x" * 20}, str(config)).service_token == "x" * 20


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\n", "empty"), (b"\xff\xfe", "UTF-8")])
def test_a_file_that_holds_none_is_named(content: bytes | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    line = problems_of({"BUNCH_JWT_SECRET_FILE": str(file)})["BUNCH_JWT_SECRET_FILE"]
    assert str(file) in line
    assert why in line


@pytest.mark.parametrize("slip", ["hunter2/hunter2", "/hunter2", "hunter2", "hunter2/../x"])
def test_the_secret_itself_where_its_file_should_be_named_is_not_shown(slip: str) -> None:
    assert "hunter2" not in str(problems_of({"BUNCH_JWT_SECRET_FILE": slip}))


def test_only_secrets_have_files() -> None:
    assert "BUNCH_HTTP_PORT_FILE" in problems_of({"BUNCH_HTTP_PORT_FILE": "port"})


def test_a_role_is_not_asked_for_the_secrets_of_another() -> None:
    environ = {"BUNCH_AUTH": "jwt", "BUNCH_FLOWER_HOST": "10.0.0.1"}
    assert set(problems_of(environ)) == {"BUNCH_AUTH", "BUNCH_FLOWER_HOST"}
    assert set(problems_of(environ | {"BUNCH_ROLE": "web"})) == {"BUNCH_AUTH"}
    assert set(problems_of(environ | {"BUNCH_ROLE": "flower"})) == {"BUNCH_FLOWER_HOST"}
    assert load_settings(environ, role="worker").auth == "jwt"


@pytest.mark.parametrize(
    "toml",
    [
        'service_token = "hunter2"\n',
        '[models.a]\nsource = "a:B"\nheaders = { Authorization = "hunter2" }\n',
        '[models.a]\nsource = "a:B"\noptions = "hunter2"\n',
        '[models.a]\nsource = "https://u:hunter2@h/p d"\n',
        '[models.a]\nsource = "a:B"\noptions = { big = 99999999999999999999, token = "hunter2" }\n',
        '[models.a]\nsource = "https://h/p"\noptions = { headers = { Authorization = ["hunter2"] } }\n',
        '[models.a]\nsource = "https://h/p"\noptions = { headers = { Authorization = { evn = "hunter2" } } }\n',
    ],
)
def test_no_message_about_bunch_toml_quotes_what_may_be_a_credential(toml: str, tmp_path: Path) -> None:
    config = tmp_path / "bunch.toml"
    config.write_text(toml)
    assert "hunter2" not in str(problems_of({}, str(config)))


def test_headers_of_an_api_come_from_the_environment_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_TOKEN", "Bearer one")
    (tmp_path / "key").write_text("two\n")
    config = tmp_path / "bunch.toml"
    config.write_text(
        '[models.a]\nsource = "https://h/p"\n'
        'options = { headers = { A = { env = "API_TOKEN" }, B = { file = "key" }, C = "three" } }\n'
    )
    headers = load_settings({}, str(config)).models["a"].options["headers"]
    monkeypatch.chdir("/")
    assert header_values(headers) == {"A": "Bearer one", "B": "two", "C": "three"}
    assert "one" not in str(headers)


@pytest.mark.parametrize("value", [{"env": "BUNCH_NO_SUCH_NAME"}, {"file": "/etc/no-such-folder/x"}])
def test_a_header_without_its_value_is_named(value: dict[str, str]) -> None:
    with pytest.raises(NoSecret, match="header Authorization"):
        header_values({"Authorization": value})


def test_a_header_of_two_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2\r\nX-Other: 1")
    with pytest.raises(NoSecret) as caught:
        header_values({"A": {"file": str(tmp_path / "key")}})
    assert "hunter2" not in str(caught.value)


def test_an_endless_file_is_no_secret() -> None:
    with pytest.raises(NoSecret):
        read_secret(Path("/dev/zero"))
