"""The command itself, with a stack and executors, on a machine without a GPU. `tests/chaos` rehearses the faults."""

from __future__ import annotations

from click.testing import CliRunner

from tests.gpu.__main__ import main


def test_executors_are_placed_on_two_gpus_in_a_rehearsal() -> None:
    done = CliRunner().invoke(main, ["--rehearse", "--only", "placement"])
    assert done.exit_code == 0, done.output
    assert "| ok | executors, each with its own CUDA_VISIBLE_DEVICES | GPU-a, GPU-b |" in done.output
