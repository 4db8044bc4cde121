"""`python -m config.native.build`: compile `hot_path.c` with the compiler that is there, beside its source.

Exits with 0 and says so in one line where there is no compiler, or no header of Python: everything works without the
library, a little slower. With `--required` it exits with 1 then, as it does for a source that cannot be compiled.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from config.native import SOURCE, load, source_hash


class NothingToCompileWith(Exception):
    """This machine has no C compiler or no header of Python, or the checkout cannot be written to."""


class NotCompiled(Exception):
    """The compiler refuses the source."""


def library() -> Path:
    """The path of the library for this interpreter."""
    return SOURCE.with_name("_hot_path" + str(sysconfig.get_config_var("EXT_SUFFIX")))


def build() -> None:
    """Compile the library. Raises `NothingToCompileWith`, `NotCompiled`."""
    compiler = next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), None)
    if compiler is None:
        raise NothingToCompileWith("there is no C compiler")
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        raise NothingToCompileWith(f"Python's headers are not in {headers}")
    made = library()
    # Renamed into place: a process that starts meanwhile finds the old library or the new one.
    unfinished = made.with_suffix(f".{os.getpid()}.new")
    flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", f'-DSOURCE_HASH="{source_hash()}"', f"-I{headers}"]
    # macOS leaves Python's own names to the process that loads the library.
    flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    command = [compiler, *flags, str(SOURCE), "-o", str(unfinished)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise NotCompiled(f"{shlex.join(command)}\n{done.stderr.strip()[-2000:]}")
        unfinished.replace(made)
    except OSError as error:
        raise NothingToCompileWith(str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise NotCompiled(str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    if load() is not None:
        return 0
    try:
        build()
    except NothingToCompileWith as why:
        sys.stderr.write(f"the hot path stays in Python, which is a little slower: {why}\n")
        return 1 if "--required" in arguments else 0
    except NotCompiled as why:
        sys.stderr.write(f"the hot path was not compiled: {why}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
