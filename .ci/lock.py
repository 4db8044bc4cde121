"""Writes a lock: every file that an image installs, by its hash, as pip chooses it on this machine.

    python .ci/lock.py [pip's own options, such as --index-url …] > requirements.lock
    python .ci/lock.py --extras=flower,accounts,otel,grpc > requirements-slim.lock

pip resolves `requirements.txt`, or of its pins those that the package needs with these extras (pyproject.toml), and
says what it would install; nothing is installed. A lock is for one Python and one
kind of machine, those of the image (CPython 3.11, Linux x86-64), so make it there. torch is left out with what it
alone brings: which build of it is right depends on the device, and each comes from elsewhere with hashes of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_BY_DEVICE = re.compile(r"torch|triton|(nvidia|cuda)-.+")
_HEAD = """\
# Made by `make lock`, of {source}; torch is not in it. Install it with
#   pip install --require-hashes --no-deps -r {name}
"""
_EXTRAS = "--extras="


def main(options: list[str]) -> None:
    extras = [each.removeprefix(_EXTRAS) for each in options if each.startswith(_EXTRAS)]
    options = [each for each in options if not each.startswith(_EXTRAS)]
    head = _HEAD.format(source="requirements.txt and constraints.txt", name="requirements.lock")
    if extras:
        source = f"the pins of what pyproject.toml names with {extras[0]}"
        head = _HEAD.format(source=source, name="requirements-slim.lock")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("".join(f"{line}\n" for line in _of_extras(extras[0].split(","))))
            file.flush()
            _write(head, [*options, "-c", str(ROOT / "constraints.txt"), "-r", file.name])
    else:
        _write(head, [*options, *([] if "-r" in options else ["-r", str(ROOT / "requirements.txt")])])


def _of_extras(extras: list[str]) -> list[str]:
    """The requirements of the package with these extras, pinned as in our requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for each in extras for line in project["optional-dependencies"][each])]
    pins = dict.fromkeys(line for path in sorted(ROOT.glob("requirements*.txt")) for line in path.read_text().split())
    pinned = {_normal(line.partition("==")[0].partition("[")[0]): line for line in pins if "==" in line}
    # What is pinned among the constraints alone has its name here.
    return [pinned.get(name, name) for name in (_normal(re.split(r"[<>=\[~!; ]", each)[0]) for each in wanted)]


def _write(head: str, options: list[str]) -> None:
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--ignore-installed"),
        *("--only-binary=:all:", "--quiet", "--report=-", *options),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit("pip could not resolve the requirements; the lock stays as it was")
    sys.stdout.write(head + "".join(map(_line, _locked(json.loads(done.stdout)))))


def _locked(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = {_name(each): each for each in report["install"]}
    return [found[name] for name in sorted(found) if not _BY_DEVICE.fullmatch(name)]


def _name(entry: dict[str, Any]) -> str:
    return _normal(entry["metadata"]["name"])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _line(entry: dict[str, Any]) -> str:
    archive = entry["download_info"]["archive_info"]
    # pip before 23.1 says it in one word.
    digest = archive["hashes"]["sha256"] if "hashes" in archive else archive["hash"].removeprefix("sha256=")
    return f"{_name(entry)}=={entry['metadata']['version']} \\\n    --hash=sha256:{digest}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
