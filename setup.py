"""The layout of the wheel; everything else about the package is in pyproject.toml.

    checkout                                    site-packages
    bunch/                                      bunch/                what other projects import
    batching/ cli/ config/ tasks/ …             bunch/_app/tasks/ …   found by the processes of Bunch alone

Other projects have a `tasks` and a `config` of their own, so nothing but `bunch` is importable by name after an
installation (ADR 0067). `config/native/hot_path.c` is compiled where there is a compiler, and left out where there is
none; `BUNCH_NATIVE=off` leaves it out, and makes a wheel for every platform and Python, `BUNCH_NATIVE=required` ends
the build where it cannot be compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

APP = ("batching", "cli", "config", "tasks", "webapp", "workers")
NATIVE = "config/native/hot_path.c"
# It includes the others.
NATIVE_SOURCES = (NATIVE, "config/native/batches.c")
DATA = [f"**/*.{kind}" for kind in ("c", "css", "html", "js", "lua", "proto", "svg", "toml", "txt")]


class BuildAnew(build_py):
    """setuptools keeps what an earlier build left in `build/`; a file that is gone since would be in the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


def hot_path() -> list[Extension]:
    if os.environ.get("BUNCH_NATIVE") == "off":
        return []
    # `config.native` refuses a library that was made of another source.
    sources = b"".join(Path(each).read_bytes() for each in NATIVE_SOURCES)
    source_hash = hashlib.sha256(sources).hexdigest()[:16]
    return [
        Extension(
            "bunch._app.config.native._hot_path",
            [NATIVE],
            depends=list(NATIVE_SOURCES),
            define_macros=[("SOURCE_HASH", f'"{source_hash}"')],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            # Without a compiler the functions in Python run, which say the same.
            optional=os.environ.get("BUNCH_NATIVE") != "required",
        )
    ]


found = find_packages(include=[pattern for name in APP for pattern in (name, f"{name}.*")])
setup(
    packages=["bunch", *(f"bunch._app.{name}" for name in found)],
    package_dir={"bunch": "bunch", **{f"bunch._app.{name}": name for name in APP}},
    package_data={"": DATA},
    ext_modules=hot_path(),
    cmdclass={"build_py": BuildAnew},
)
