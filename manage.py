#!/usr/bin/env python3
"""The command line of Bunch; the commands are in `cli/`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_VENV = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
if __name__ == "__main__" and sys.prefix == sys.base_prefix and _VENV.exists():
    # `./manage.py` in a shell where nothing is activated, as shell completion runs it.
    os.execv(_VENV, [str(_VENV), *sys.argv])  # noqa: S606

from cli.commands import cli  # noqa: E402

if __name__ == "__main__":
    cli(prog_name="manage.py")
