"""`containerize`: a Dockerfile for the folder of a bunch.toml."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from cli.base import settings_for
from cli.run.init import write_new
from config.settings import Settings
from config.version import VERSION

_DOCKERFILE = """\
# The models of this folder on Bunch:
#   docker build -t {tag} .
#   docker run --rm --network host {tag} up
# One container for each role instead: `docker run … {tag} worker`, web, grpc, ops, flower; Bunch's own
# docker/compose.yml with IMAGE={tag}. The roles without a model run on the image without torch just as well.
ARG BASE={base}

FROM ${{BASE}}

# Beside Bunch's own packages, which stay as they are: a package that needs others fails here and not in production.
USER 0:0
COPY requirements.txt /opt/bunch/model-requirements.txt
RUN pip install --no-cache-dir --constraint /opt/bunch/constraints.txt --requirement /opt/bunch/model-requirements.txt
USER 10001:10001

COPY . /models
"""

_DOCKERIGNORE = """\
# Secrets are for the container, not in the image.
**/.env
**/.env.*
**/*.key
.dockerignore
.git
.gitignore
.venv
Dockerfile
**/__pycache__
{state_dir}
"""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, exists=True, path_type=Path), default=Path())
@click.option(
    "--base", default="", metavar="IMAGE", help=f"Base image.  [default: bunch:{VERSION}, or its slim variant]"
)
def containerize(folder: Path, base: str) -> None:
    """Write a Dockerfile for the models of FOLDER, the current one by default.

    The image has the folder at /models and the packages of its requirements.txt, on Bunch's image; on the one without
    torch if requirements.txt does not name it and no model of Bunch needs it. Files that exist are never overwritten.
    """
    file = folder / "bunch.toml"
    if not file.is_file():
        raise click.ClickException(f"{file} does not exist; write it, or start with `init`")
    settings = settings_for(file)
    requirements = folder / "requirements.txt"
    files = {} if requirements.exists() else {"requirements.txt": "# The packages of the models.\n"}
    base = base or (f"bunch:{VERSION}" if _needs_torch(settings, requirements) else f"bunch:{VERSION}-slim")
    tag = _tag(folder)
    state_dir = Path(settings.state_dir)
    files |= {
        "Dockerfile": _DOCKERFILE.format(base=base, tag=tag),
        ".dockerignore": _DOCKERIGNORE.format(state_dir="var" if state_dir.is_absolute() else state_dir),
    }
    write_new(folder, files)
    click.echo(f"build it:  docker build -t {tag} {shlex.quote(str(folder))}")
    click.echo(f"run it:    docker run --rm --network host {tag} up")


def _needs_torch(settings: Settings, requirements: Path) -> bool:
    """Return whether the image with torch saves a download: it has the version that is tried."""
    named = requirements.read_text().splitlines() if requirements.exists() else []
    if any(line.strip().lower().startswith(("torch", "transformers", "sentence-transformers")) for line in named):
        return True
    return any(model.source.startswith("workers.models.minilm:") for model in settings.models.values())


def _tag(folder: Path) -> str:
    """The folder's name in the letters of an image's."""
    name = "".join(each if each.isascii() and each.isalnum() else "-" for each in folder.resolve().name.lower())
    return name.strip("-") or "my-model"
