"""Writes `requirements.lock`: every file that an image installs, by its hash, as pip chooses it on this machine.

    python .ci/lock.py [pip's own options, such as --index-url …] > requirements.lock

pip resolves `requirements.txt` and says what it would install; nothing is installed. A lock is for one Python and one
kind of machine, those of the image (CPython 3.11, Linux x86-64), so make it there. torch is left out with what it
alone brings: which build of it is right depends on the device, and each comes from elsewhere with hashes of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_BY_DEVICE = re.compile(r"torch|triton|(nvidia|cuda)-.+")
_HEAD = """\
# Made by `make lock`, of requirements.txt and constraints.txt; torch is not in it. Install it with
#   pip install --require-hashes --no-deps -r requirements.lock
"""


def main(options: list[str]) -> None:
    requirements = [] if "-r" in options else ["-r", str(ROOT / "requirements.txt")]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--ignore-installed"),
        *("--only-binary=:all:", "--quiet", "--report=-", *options, *requirements),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit("pip could not resolve the requirements; the lock stays as it was")
    sys.stdout.write(_HEAD + "".join(map(_line, _locked(json.loads(done.stdout)))))


def _locked(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = {_name(each): each for each in report["install"]}
    return [found[name] for name in sorted(found) if not _BY_DEVICE.fullmatch(name)]


def _name(entry: dict[str, Any]) -> str:
    return re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower()


def _line(entry: dict[str, Any]) -> str:
    archive = entry["download_info"]["archive_info"]
    # pip before 23.1 says it in one word.
    digest = archive["hashes"]["sha256"] if "hashes" in archive else archive["hash"].removeprefix("sha256=")
    return f"{_name(entry)}=={entry['metadata']['version']} \\\n    --hash=sha256:{digest}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
