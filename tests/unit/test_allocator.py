"""The allocator that the embedded server gets, with the real server and the real loader."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest

from cli.run.doctor import host_findings
from cli.supervisor import allocator
from cli.supervisor.allocator import PRELOAD, allocator_environment
from config.settings import Settings

OF_LIBC = "libm.so.6"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    allocator_environment.cache_clear()
    yield
    allocator_environment.cache_clear()


def only(monkeypatch: pytest.MonkeyPatch, *candidates: str) -> None:
    monkeypatch.setattr(allocator, "candidates", lambda: iter(candidates))


def test_the_first_that_loads_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "libnothere.so.2", OF_LIBC, "libc.so.6")
    assert allocator_environment() == {PRELOAD: OF_LIBC}


def test_without_any_glibc_keeps_more_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "libnothere.so.2", "/dev/null")
    assert list(allocator_environment()) == ["GLIBC_TUNABLES"]


def test_elsewhere_nothing_is_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, OF_LIBC)
    monkeypatch.setattr(allocator.sys, "platform", "darwin")
    assert PRELOAD not in allocator_environment()


def test_one_from_pypi_is_found_where_it_was_installed() -> None:
    if not list(metadata.distributions(name="tbb")):
        pytest.skip("oneTBB has wheels for x86-64 alone")
    *_, last = allocator.candidates()
    assert allocator.loads(last)
    # The second needs the first, and does not find it by itself.
    assert not allocator.loads(last.partition(":")[2])


@pytest.mark.parametrize(("libraries", "told"), [("libnothere.so.2", True), (OF_LIBC, False)])
def test_doctor_says_when_it_is_glibcs(monkeypatch: pytest.MonkeyPatch, libraries: str, told: bool) -> None:
    only(monkeypatch, libraries)
    assert ("allocator" in {each.key for each in host_findings(Settings())}) == told
    assert "allocator" not in {each.key for each in host_findings(Settings(redis_url="redis://h"))}
