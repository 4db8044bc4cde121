"""Runs the steps of a Dockerfile in a plain folder, where there is no container engine.

Each stage is a folder that stands for its root. Absolute paths in instructions, and in shell scripts that are copied,
are moved below it. Programs that need root, or the network, are replaced (`base_image`).

    FROM base AS stage  ──▶ a folder, with what is in the folder of that base
    RUN, COPY, ENV, …   ──▶ done there
    the target          ──▶ Image: what a container of it would run, as a process of this machine
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

# An absolute path of the image in a line of a script, but for those that are the machine's.
_PATH = re.compile(r"""(?:(?<=^)|(?<=[\s="'>:]))/(?!dev/|proc/|bin/|usr/bin/)(?=[a-z])""", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class Image:
    """A stage: `root` is its folder, `environment` what `ENV` has set."""

    root: Path
    environment: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    healthcheck: tuple[str, ...] = ()

    def path(self, path: str) -> Path:
        """The place of a path of the image on this machine."""
        return self.root / path.lstrip("/")

    def command_of(self, *arguments: str) -> list[str]:
        """The command of a container that is started with `arguments`."""
        return [*self.entrypoint, *(arguments or self.command)]

    def moved(self, text: str) -> str:
        """`text` with the image's absolute paths below `root`."""
        return _PATH.sub(f"{self.root}/", text)


def build(dockerfile: Path, context: Path, folder: Path, *, target: str = "", **bases: Image) -> Image:
    """Run the steps of `target`, the last stage by default, and of the stages that it needs, as BuildKit does.

    Each stage is in a folder of its own below `folder`.

    Args:
        bases: images by the names of the arguments in `FROM ${NAME}`; others are an empty root.
    """
    steps = _stages(dockerfile.read_text())
    stages: dict[str, Image] = {}
    for name in _needed(steps, target or next(reversed(steps))):
        base, todo = steps[name]
        image = _started(stages.get(base) or bases[base.strip("${}")], folder / name)
        for word, rest in todo:
            image = _STEPS[word](image, rest, context, stages)
        stages[name] = image
    return image


def _stages(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """The base and the instructions of each stage, in their order; one without a name is called `last`."""
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    todo: list[tuple[str, str]] = []
    for word, rest in instructions(text):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            todo = []
            stages[name or "last"] = (base, todo)
        elif word != "ARG":
            todo.append((word, rest))
    return stages


def _needed(stages: Mapping[str, tuple[str, list[tuple[str, str]]]], target: str) -> list[str]:
    needed = {target}
    for name in reversed(list(stages)):
        if name in needed:
            base, todo = stages[name]
            sources = (re.search(r"--from=(\S+)", rest) for word, rest in todo if word == "COPY")
            needed |= {base, *(found[1] for found in sources if found)}
    return [name for name in stages if name in needed]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, each on one line."""
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", " ", kept).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def base_image(folder: Path, packages: Path) -> Image:
    """An image without files, whose programs are those of this machine, or need neither root nor network.

    pip takes what is asked for from the folder `packages`, and what a lock names from the environment that runs the
    tests. Every command line of pip is in `packages/log`.
    """
    root, programs = folder / "base", folder / "programs"
    root.mkdir()
    programs.mkdir()
    beside = sysconfig.get_path("purelib")
    scripts = {
        **dict.fromkeys(("apt-get", "useradd", "chown"), "exit 0"),
        "tini": 'shift; exec "$@"',
        # A volume, where the test says that there is one.
        "mountpoint": 'test -e "$2/.mounted"',
        "python": f'exec {sys.executable} "$@"',
        "pip": f"""
echo "$*" >> {packages}/log
case "$*" in
    *requirements.lock* | *requirements-slim.lock* | *build/requirements.txt*)
        echo {beside} > "$($PIP_PYTHON -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth" ;;
    wheel*) shift; unset PIP_PYTHON; exec {sys.executable} -m pip wheel -q --no-build-isolation --no-index "$@" ;;
    freeze*) echo "hiredis==3.5.0" ;;
    *) shift; exec {sys.executable} -m pip install -q --no-index --find-links={packages} --no-compile "$@" ;;
esac""",
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUNCH_", "PIP_", "PYTHON"))}
    return Image(root, kept | {"PATH": os.pathsep.join((f"{root}/usr/local/bin", str(programs), os.environ["PATH"]))})


def _started(parent: Image, root: Path) -> Image:
    shutil.copytree(parent.root, root, symlinks=True)
    _move_scripts(root, parent.root, root)
    moved = {name: value.replace(str(parent.root), str(root)) for name, value in parent.environment.items()}
    return replace(parent, root=root, environment=moved)


def _move_scripts(folder: Path, before: Path, after: Path) -> None:
    """Scripts name the interpreter, and other paths, of the root that they were made for."""
    for path in folder.rglob("bin/*"):
        if path.is_file() and not path.is_symlink() and (text := path.read_bytes()).startswith(b"#!"):
            path.write_bytes(text.replace(bytes(before), bytes(after)))


def _run(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    done = subprocess.run(
        ["sh", "-euc", image.moved(rest)],
        cwd=image.path(image.cwd), env=dict(image.environment),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"
    return image


def _copy(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    words = rest.split()
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, to = (word for word in words if not word.startswith("--"))
    start = stages[options["from"]].root if "from" in options else context
    target = image.path(to if to.startswith("/") else f"{image.cwd}/{to}")
    for source in sources:
        found = start / source.lstrip("/")
        if found.is_dir():
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True, ignore=_not_copied)
            _move_scripts(target, start, image.root)
            continue
        place = target / found.name if to.endswith("/") or target.is_dir() else target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, place)
        text = place.read_bytes()
        if text.startswith(b"#!/bin/sh"):
            place.write_text(image.moved(text.decode()))
        if "chmod" in options:
            place.chmod(int(options["chmod"], 8))
    return image


_not_copied = shutil.ignore_patterns("__pycache__", "*.so", "var", ".git")


def _workdir(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    image.path(rest).mkdir(parents=True, exist_ok=True)
    return replace(image, cwd=rest)


def _env(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    added = dict(pair.split("=", 1) for pair in rest.split())
    known = image.environment
    expanded = {
        name: _VARIABLE.sub(lambda found: known[found[1] or found[2]], image.moved(value))
        for name, value in added.items()
    }
    return replace(image, environment={**known, **expanded})


def _user(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    return replace(image, user=rest)


def _label(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    return replace(image, labels=dict(re.findall(r'(\S+)="([^"]*)"', rest)))


def _entrypoint(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    return replace(image, entrypoint=tuple(json.loads(rest)))


def _cmd(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    return replace(image, command=tuple(json.loads(rest)))


def _healthcheck(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    return replace(image, healthcheck=tuple(json.loads(rest.partition(" CMD ")[2])))


def _nothing(image: Image, rest: str, context: Path, stages: Mapping[str, Image]) -> Image:
    return image


_STEPS = {
    **dict.fromkeys(("EXPOSE", "STOPSIGNAL"), _nothing),
    "RUN": _run,
    "COPY": _copy,
    "WORKDIR": _workdir,
    "ENV": _env,
    "USER": _user,
    "LABEL": _label,
    "ENTRYPOINT": _entrypoint,
    "CMD": _cmd,
    "HEALTHCHECK": _healthcheck,
}
