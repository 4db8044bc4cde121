"""`init`: a folder that `up` serves, to start from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from config.installation import PROGRAM

BUNCH_TOML = """\
# The models that are served. `check` reports every problem of this file.
default_model = "words"

[models.words]
source = "model:Words"     # the class Words of model.py, beside this file
version = "1"
max_batch_size = 64
timeout_ms = 3000          # for a batch; a slower one is killed with its process, and runs again

# [server]
# http_port = 8000
"""

MODEL_PY = '''\
"""The model: it gets the inputs that wait at the same moment in one call."""

from typing import Any

from bunch import InputRejected


class Words:
    def load(self, device: str) -> None:
        """Called once, in a process of its own: read the weights, and move them to `device`."""

    def predict(self, inputs: list[Any], parameters: list[dict[str, Any]]) -> list[Any]:
        """Return one output per input, in order; an exception among them is that one caller's error."""
        return [self._count(text) for text in inputs]

    def _count(self, text: Any) -> Any:
        if not isinstance(text, str):
            return InputRejected("the input must be a text")
        return {"words": len(text.split()), "letters": sum(map(str.isalpha, text))}
'''

REQUIREMENTS_TXT = """\
# The packages of the model, for example torch. Bunch itself needs no line here.
"""

GITIGNORE = """\
__pycache__/
# The state of a running stack: queue, logs, figures.
var/
"""

FILES: Mapping[str, str] = {
    "bunch.toml": BUNCH_TOML,
    "model.py": MODEL_PY,
    "requirements.txt": REQUIREMENTS_TXT,
    ".gitignore": GITIGNORE,
}


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path())
def init(folder: Path) -> None:
    """Write a bunch.toml and a small model into FOLDER, the current one by default.

    Files that exist are never overwritten: with any of them nothing is written.
    """
    write_new(folder, FILES)
    here = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"serve it:  {here}{PROGRAM} up --reload")


def write_new(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files` into `folder`, all or none, and say so.

    Raises:
        ClickException: one of them exists, or the folder cannot be written to.
    """
    there = [name for name in files if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise click.ClickException(f"{folder / there[0]} exists; nothing was written")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
            click.echo(f"wrote {folder / name}")
    except OSError as error:
        raise click.ClickException(f"cannot write into {folder}: {error.strerror}") from error
