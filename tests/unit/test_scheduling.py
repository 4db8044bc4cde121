"""The order of the test files, and which go to one process together."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling

from config.environ import ROOT
from tests.scheduling import FOLDERS, LONGEST, ByStack, turn, uses_the_shared_stack

TESTS = ROOT / "tests"


@pytest.mark.parametrize("name", LONGEST)
def test_a_file_that_is_named_is_there(name: str) -> None:
    assert (TESTS / name).exists()


def test_the_shared_stack_comes_first_and_unit_tests_last() -> None:
    files = [TESTS / "unit/test_ids.py", TESTS / "integration/test_lock.py", TESTS / "e2e/test_tls.py"]
    longest = [TESTS / name / "test_inputs.py" if (TESTS / name).is_dir() else TESTS / name for name in LONGEST]
    first = [TESTS / "e2e/test_api.py", *longest]
    assert sorted([*files, *reversed(first)], key=turn) == [*first, *reversed(files)]
    assert FOLDERS[0] == "e2e"


@pytest.mark.parametrize(("name", "shared"), [("api", True), ("explain", True), ("up", False), ("tls", False)])
def test_who_starts_a_stack_does_not_use_the_shared_one(name: str, shared: bool) -> None:
    assert uses_the_shared_stack(TESTS / f"e2e/test_{name}.py") is shared


def test_files_of_the_shared_stack_are_handed_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadFileScheduling, "__init__", lambda self: None)
    scope = ByStack()._split_scope  # type: ignore[call-arg]
    together = {scope(f"tests/e2e/{file}::test_one[a::b]") for file in ("test_api.py", "test_explain.py")}
    assert len(together) == 1
    assert scope("tests/e2e/bytes/test_inputs.py::test_one") == scope("tests/e2e/bytes/test_forms.py::test_one")
    assert scope("tests/e2e/test_up.py::test_one") == str(Path("tests/e2e/test_up.py"))
    assert scope("tests/unit/test_ids.py::test_one") == "tests/unit/test_ids.py"
