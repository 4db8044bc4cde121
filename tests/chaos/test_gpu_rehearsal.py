"""The faults of `python -m tests.gpu` on a machine without a GPU: raised by hand, in processes with the real torch."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.gpu.__main__ import main

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


def test_the_faults_of_a_device_are_survived_in_a_rehearsal() -> None:
    done = CliRunner().invoke(main, ["--rehearse", "--only", "memory", "--only", "assert"])
    print(done.output)
    assert done.exit_code == 0
    assert done.output.count("63 of 64 right") == 2
    assert done.output.count("64 of 64, calls of 16") == 2
