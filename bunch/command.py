"""The command `bunch`, which `pip install` makes, and `python -m bunch`: the commands of `manage.py`.

The packages behind it are in `bunch/_app`, which no other program has on its path. This one puts it first on its own,
and its children get it as `PYTHONPATH` (`config.environ`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run the command line, with the packages of this installation, or of the checkout (`pip install -e`)."""
    app = _HERE / "_app"
    sys.path.insert(0, str(app if app.is_dir() else _HERE.parent))
    # By its name, since the arrow of imports goes from the commands to here.
    import_module("cli.commands").cli(prog_name="bunch")
