"""The environment that child processes are given: ours, with `BUNCH_…` names laid over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from config.settings import PREFIX

ROOT = Path(__file__).resolve().parent.parent


def child_environment(
    settings: Mapping[str, object], extra: Mapping[str, str] | None = None, import_from: tuple[str, ...] = ()
) -> dict[str, str]:
    """What a child process of Bunch starts with.

    Args:
        settings: setting names in lower case; None and "" leave what is inherited, so that an unset one
            stays unset.
        extra: defaults for names of other programs, such as `FLOWER_…`; what is inherited goes first.
        import_from: folders besides the checkout and the working directory from which a model's source may be imported.
    """
    environment = dict(os.environ)
    inherited = environment.get("PYTHONPATH", "")
    # Celery (`cwd_in_path`) and gunicorn (`Application.chdir`, by PWD) put the working directory in front of all,
    # unless it is on the path already: somebody's own `tasks.py` and `config.py` may lie there.
    here = (str(Path.cwd()), environment.get("PWD", ""))
    folders = [str(ROOT), *import_from, *here, *inherited.split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))
    environment.update(
        {PREFIX + name.upper(): str(value) for name, value in settings.items() if value not in {None, ""}}
    )
    return {**(extra or {}), **environment}
