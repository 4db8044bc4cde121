"""`python -m config.native.build`: compile `hot_path.c` with the compiler that is there, beside its source.

Says in one line what happened. Exits with 0 also where there is no compiler or no header of Python: everything works
without the library, a little slower. `--required`: exits with 1 then.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from config.native import SOURCE, hot_path, source_hash


def library() -> Path:
    """The path of the library for this interpreter."""
    return SOURCE.with_name("_hot_path" + str(sysconfig.get_config_var("EXT_SUFFIX")))


def build() -> str:
    """Compile the library. Returns the reason why that was not possible; empty if it is there."""
    compiler = next(filter(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang")), None)
    if compiler is None:
        return "there is no C compiler"
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        return f"Python's headers are not in {headers}"
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
            return f"{shlex.join(command)}: {done.stderr.strip()[-500:]}"
        unfinished.replace(made)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        unfinished.unlink(missing_ok=True)
    return ""


def main(arguments: list[str]) -> int:
    if hot_path is not None:
        return 0
    why = build()
    if why:
        sys.stderr.write(f"the hot path stays in Python, which is a little slower: {why}\n")
    return 1 if why and "--required" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
