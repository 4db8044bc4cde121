"""The words of `doctor` about a host, and the files that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import json

from cli.commands import cli
from cli.run import doctor
from config.process.host import MIB, Host, Needs, lacks, look

GOOD = Host(65_536, 4096, 4096, 1, "madvise", 8192 * MIB, 50_000 * MIB, "ext4", 1, driver=True, device_files=True)
NEEDS = Needs(open_files=10_256, backlog=2048, embedded=True, durable=True, local_models=True)


def change(value: Any, **fields: object) -> Any:
    return type(value)(**{name: getattr(value, name) for name in value.__slots__} | fields)


def said(host: Host, needs: Needs = NEEDS) -> list[tuple[str, str]]:
    return [(each.key, each.fix) for each in lacks(host, needs)]


def test_a_host_that_has_everything_is_told_nothing() -> None:
    assert said(GOOD) == []


def test_what_cannot_be_read_is_not_found_fault_with() -> None:
    assert said(Host()) == []


@pytest.mark.parametrize(
    ("found", "key", "fix"),
    [
        ({"open_files": 4096}, "open files (ulimit -Hn)", "LimitNOFILE=20512"),
        ({"processes": 100}, "processes (ulimit -u)", "LimitNPROC=512"),
        ({"somaxconn": 128}, "net.core.somaxconn", "sysctl -w net.core.somaxconn=4096"),
        ({"overcommit": 0}, "vm.overcommit_memory", "sysctl -w vm.overcommit_memory=1"),
        (
            {"huge_pages": "always"},
            "transparent huge pages",
            "echo madvise > /sys",
        ),
        ({"memory_bytes": 500 * MIB}, "memory", "BUNCH_WEB_WORKERS=1"),
        ({"free_bytes": 100 * MIB}, "BUNCH_STATE_DIR", "free some space"),
        ({"file_system": "tmpfs"}, "BUNCH_STATE_DIR", "a folder on a disk"),
        ({"file_system": "nfs4"}, "BUNCH_STATE_DIR", "network file system"),
        ({"driver": False}, "NVIDIA GPUs", "install NVIDIA's"),
        ({"device_files": None}, "NVIDIA GPUs", "nvidia-modprobe"),
        ({"device_files": False}, "/dev/nvidia*", "add it to the group"),
    ],
)
def test_each_lack_is_named_with_its_fix(found: dict[str, Any], key: str, fix: str) -> None:
    ((named, told),) = said(change(GOOD, **found))
    assert named == key
    assert fix in told


def test_a_server_elsewhere_needs_nothing_of_this_host() -> None:
    bad = change(GOOD, overcommit=0, huge_pages="always", file_system="tmpfs", free_bytes=0)
    assert said(bad, change(NEEDS, embedded=False)) == []
    # What is meant to be forgotten may be in memory.
    assert said(change(GOOD, file_system="tmpfs"), change(NEEDS, durable=False)) == []


def test_models_behind_urls_need_no_driver() -> None:
    assert said(change(GOOD, driver=False), change(NEEDS, local_models=False)) == []


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_host_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    proc, sys, state = tmp_path / "proc", tmp_path / "sys", tmp_path / "my state" / "var"
    write(proc / "sys/net/core/somaxconn", "128\n")
    write(proc / "sys/vm/overcommit_memory", "0\n")
    write(sys / "kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    escaped = str(state.parent).replace(" ", "\\040")
    write(proc / "mounts", f"/dev/sda / ext4 rw 0 0\nnone {escaped} tmpfs rw 0 0\nnone /other nfs4 rw 0 0\n")
    write(proc / "driver/nvidia/version", "NVRM version: …")
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        write(sys / "bus/pci/devices" / name / "vendor", vendor + "\n")
        write(sys / "bus/pci/devices" / name / "class", kind + "\n")
    state.parent.mkdir()
    host = look(state, proc, sys)
    assert (host.somaxconn, host.overcommit, host.huge_pages) == (128, 0, "madvise")
    # The folder itself need not be there yet.
    assert host.file_system == "tmpfs"
    assert (host.gpus_on_bus, host.driver) == (1, True)
    assert host.free_bytes


def test_the_limits_that_are_asked_for_are_those_of_the_frontend() -> None:
    text = (Path(doctor.__file__).parents[2] / "config" / "gunicorn.py").read_text()
    assert f"worker_connections = {doctor.CONNECTIONS:_}\n" in text
    assert f"backlog = {doctor.BACKLOG}\n" in text


def test_doctor_is_check_and_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "look", lambda _folder: change(GOOD, overcommit=0))
    file = tmp_path / "bunch.toml"
    file.write_text('[models.gone]\nsource = "nowhere:Gone"\n')
    done = CliRunner().invoke(cli, ["doctor", "--json", "--config", str(file)])
    found = json.decode(done.output)
    assert done.exit_code == 1
    assert [each["key"] for each in found["problems"]] == ["[models.gone] source"]
    assert "vm.overcommit_memory" in [each["key"] for each in found["warnings"]]
    file.write_text('[models.echo]\nsource = "workers.models.echo:Echo"\n')
    # A host that lacks something is a warning: Bunch runs.
    assert CliRunner().invoke(cli, ["doctor", "--config", str(file)]).exit_code == 0
