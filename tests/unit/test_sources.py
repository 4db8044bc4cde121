"""The kind of a model's source, seen without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.model_files.sources import find_module, is_plain_function

PLAIN = "def batchstring(inputs):\n    return inputs\n"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (PLAIN, True),
        ("raise RuntimeError('imported')\n" + PLAIN, True),
        ("class Model:\n    def batchstring(self):\n        pass\n", False),
        ("class batchstring:\n    pass\n", False),
        ("async " + PLAIN, False),
        ("import functools\n@functools.cache\n" + PLAIN, False),
        (PLAIN + "batchstring = object()\n", False),
        ("from elsewhere import batchstring\n", False),
        (PLAIN + "from elsewhere import *\n", False),
        ("if True:\n    def batchstring(inputs):\n        return inputs\n", False),
        ("def batchstring(inputs:\n", False),
        ("\0", False),
        ("", False),
    ],
)
def test_only_what_is_plainly_a_function_is_one(tmp_path: Path, text: str, plain: bool) -> None:
    (tmp_path / "theirs.py").write_text(text)
    assert is_plain_function("theirs:batchstring", [str(tmp_path)]) is plain


def test_packages_on_the_way_are_not_imported(tmp_path: Path) -> None:
    deep = tmp_path / "outer" / "inner"
    deep.mkdir(parents=True)
    (tmp_path / "outer" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (deep / "module.py").write_text(PLAIN)
    assert is_plain_function("outer.inner.module:batchstring", [str(tmp_path)])
    assert find_module("outer.other.module", [str(tmp_path)]) is None
    assert not is_plain_function("outer:batchstring", [str(tmp_path / "nowhere")])
