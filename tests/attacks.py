"""`python -m tests.attacks`: runs all tests whose cases are attacks, against real servers, and reports the results.

For each kind of attack it prints how many were sent, and whether all were refused. Exit 0 when they were. `--quick`
leaves out the tests that need a whole stack.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import pytest

# Kind → files of its cases; those that need a whole stack come last.
ALONE: dict[str, Sequence[str]] = {
    "request smuggling and rubbish": ("tests/integration/test_http_server_refusals.py", "tests/unit/test_http_head.py"),
    "chunks and trailers": ("tests/unit/test_http_chunked.py",),
    "slow clients": ("tests/integration/test_http_server_limits.py",),
    "strangers: places, memory, framing": (
        "tests/integration/test_http_server_strangers.py",
        "tests/unit/test_http_intake.py",
    ),
    "bodies that cost": ("tests/unit/test_hostile_bodies.py", "tests/unit/test_body_budget.py"),
    "compressed bombs": ("tests/unit/test_compression.py",),
    "arrays and tables that lie": ("tests/unit/test_input_types.py", "tests/unit/test_fuzz.py"),
    "tokens": ("tests/unit/test_tokens.py",),
    "guessing": ("tests/unit/test_throttle.py",),
    "loopback rules": ("tests/unit/test_ops_origin_check.py", "tests/unit/test_access.py"),
}
WITH_A_STACK: dict[str, Sequence[str]] = {
    "credentials, tenants, logs": ("tests/e2e/test_attacks.py",),
    "rubbish to the API": ("tests/e2e/test_rubbish.py",),
    "hostile names": ("tests/e2e/test_names.py",),
    "operators' endpoints and loopback rules": ("tests/e2e/test_operators.py",),
}


class Tally:
    """A pytest plugin that counts the outcomes of the cases of each file."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        if report.when == "call" and not report.skipped:
            self.sent[file] += 1
        if report.failed:
            self.failed[file] += 1
        elif report.skipped:
            self.skipped[file] += 1


def main(arguments: Sequence[str]) -> int:
    kinds = ALONE if "--quick" in arguments else {**ALONE, **WITH_A_STACK}
    files = [file for each in kinds.values() for file in each]
    tally = Tally()
    code = int(pytest.main(["-q", *(each for each in arguments if each != "--quick"), *files], plugins=[tally]))
    print(f"\n{'attacks':42} {'cases':>6} {'not refused as they should be':>30}")
    for kind, of_kind in kinds.items():
        sent, failed = (sum(count[file] for file in of_kind) for count in (tally.sent, tally.failed))
        print(f"{kind:42} {sent:6} {failed:30}")
    sent, failed, skipped = (count.total() for count in (tally.sent, tally.failed, tally.skipped))
    print(f"{'all':42} {sent:6} {failed:30}")
    if skipped:
        print(f"{skipped} were not sent: what they need is not here")
    done = "all were refused as they should be" if not failed and not code else "NOT all were refused as they should be"
    print(f"{sent} cases sent: {done}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
