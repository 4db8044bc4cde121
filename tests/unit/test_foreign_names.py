"""Names in the environment that others made: they are no settings, and keep nothing from starting."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.checks.foreign_names import made_by_kubernetes
from config.errors import SettingsError
from config.settings import Settings, load_settings

LABEL = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,6})?", fullmatch=True)
ADDRESS = st.sampled_from(["10.96.0.7", "fd00::7"])


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def service(name: str, address: str, ports: dict[str, tuple[int, str]]) -> dict[str, str]:
    """The variables that kubelet's `envvars.FromServices` makes of a Service: `ports` are name → (number, protocol)."""
    prefix = name.upper().replace("-", "_")
    host = f"[{address}]" if ":" in address else address
    first, protocol = next(iter(ports.values()))
    made = {
        f"{prefix}_SERVICE_HOST": address,
        f"{prefix}_SERVICE_PORT": str(first),
        f"{prefix}_PORT": f"{protocol.lower()}://{host}:{first}",
    }
    for label, (number, kind) in ports.items():
        made[f"{prefix}_SERVICE_PORT_{label.upper().replace('-', '_')}"] = str(number)
        each = f"{prefix}_PORT_{number}_{kind}"
        made[each] = f"{kind.lower()}://{host}:{number}"
        made |= {f"{each}_PROTO": kind.lower(), f"{each}_PORT": str(number), f"{each}_ADDR": address}
    return made


@given(
    suffix=st.one_of(st.just(""), LABEL.map("-{}".format), st.sampled_from(["-http", "-flower", "-service", "-redis"])),
    address=ADDRESS,
    ports=st.dictionaries(
        LABEL, st.tuples(st.integers(1, 65535), st.sampled_from(["TCP", "UDP", "SCTP"])), min_size=1, max_size=3
    ),
)
def test_a_service_of_any_name_changes_no_setting(suffix: str, address: str, ports: dict[str, tuple[int, str]]) -> None:
    environ = service("bunch" + suffix, address, ports)
    assert load_settings(environ | {"BUNCH_WEB_WORKERS": "3"}) == Settings(web_workers=3)


@pytest.mark.parametrize("name", [each.name for each in msgspec.structs.fields(Settings)])
def test_no_setting_has_a_name_that_kubernetes_makes(name: str) -> None:
    assert not made_by_kubernetes(f"BUNCH_{name.upper()}", "1")


@pytest.mark.parametrize(
    ("name", "value"), [("BUNCH_HTTP_PROT", "80"), ("BUNCH_REDIS_PORT", "6379"), ("BUNCH_SERVICE_TOKENS", "x")]
)
def test_a_misspelt_setting_is_still_found(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({name: value})


def test_a_port_that_somebody_set_is_read_beside_those_of_a_service() -> None:
    environ = service("bunch", "10.0.0.1", {"http": (80, "TCP")}) | {"BUNCH_HTTP_PORT": "8123"}
    assert load_settings(environ).http_port == 8123
