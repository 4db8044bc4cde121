"""The one line of an error that says what is wrong."""

from __future__ import annotations

import pytest

from tasks.observability.error_summary import error_summary

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/model.py", line 7, in load
    self.weights = read(path)["weights"]
                   ~~~~~~~~~~^^^^^^^^^^^
KeyError: 'weights'
"""
CHAINED = f"""{TRACEBACK}
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/model.py", line 9, in load
    raise RuntimeError("no\\nweights")
RuntimeError: no
weights at all
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACEBACK, "KeyError: 'weights'"),
        (CHAINED, "RuntimeError: no"),
        ("the process was killed by SIGKILL\nits log says more", "the process was killed by SIGKILL"),
        ("\n\n  computed for more than 1000 ms\n", "computed for more than 1000 ms"),
        ("", ""),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_it_is_the_line_that_names_the_fault(text: str, said: str) -> None:
    assert error_summary(text) == said
