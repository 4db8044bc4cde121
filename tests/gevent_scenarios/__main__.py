from __future__ import annotations

# Before anything else is imported, as gunicorn's gevent worker does it.
from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402
from importlib import import_module  # noqa: E402

from tests.gevent_scenarios.stage import Stage  # noqa: E402


def main(url: str, module: str, scenario: str) -> None:
    stage = Stage(url)
    try:
        getattr(import_module(f"tests.gevent_scenarios.{module}"), scenario)(stage)
    finally:
        stage.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
