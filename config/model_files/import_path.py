"""The import path of a model: its author's modules beside bunch.toml take precedence over ours of the same name.

    sys.path      the folder of bunch.toml, what this process was given, and this checkout last
    sys.modules   ours of a name that is also the author's (tasks, config, workers, …) step aside

The executor's process has imported all of our modules that it needs by then: they refer to each other directly, and
work without being found by name. So no module that it runs may import another of ours later. `bunch` always stays: both
sides need the same class of a refused input. A model that is shipped here finds our modules, whatever is beside
bunch.toml.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from config.environ import ROOT, keep_import_folders
from config.model_files.schemes import scheme_of
from config.model_files.sources import find_module

_FACE = "bunch"


def model_path(folder: str, inherited: Sequence[str]) -> list[str]:
    """`inherited` with the folder of bunch.toml first, if there is one, and this checkout last, unless it is that."""
    others = [each for each in inherited if each != folder and not _is_root(each)]
    first = [folder] if folder else []
    return [*first, *others] if folder and _is_root(folder) else [*first, *others, str(ROOT)]


def make_way(path: Sequence[str], source: str) -> None:
    """Make this process, and programs that it starts, import as the author of `source` expects."""
    sys.path[:] = path
    keep_import_folders(path)
    theirs = [each for each in path if not _is_root(each)]
    if scheme_of(source).remote or _is_shipped(source.partition(":")[0], theirs):
        return
    for name in _our_packages():
        spec = PathFinder.find_spec(name, theirs)
        if spec is not None:
            _step_aside(name, spec)


def _is_shipped(module: str, theirs: Sequence[str]) -> bool:
    """Return whether `module` is one of this checkout, and not one of the author's."""
    return find_module(module, theirs) is None and find_module(module, [str(ROOT)]) is not None


def _our_packages() -> list[str]:
    """Our top-level packages that are loaded, without `bunch`."""
    names = {name.partition(".")[0] for name in sys.modules} - {_FACE, "__main__"}
    return sorted(name for name in names if (found := sys.modules.get(name)) is not None and _is_of_root(found))


def _is_of_root(module: object) -> bool:
    file = getattr(module, "__file__", None)
    if not file:
        return False
    path = Path(file)
    return (path.parent.parent if path.name == "__init__.py" else path.parent) == ROOT


def _step_aside(name: str, theirs: ModuleSpec) -> None:
    for each in [each for each in sys.modules if each == name or each.startswith(name + ".")]:
        del sys.modules[each]
    if theirs.loader is None or theirs.origin is None:
        # A folder without `__init__.py`: a package of ours further along the path would be found first.
        sys.modules[name] = importlib.util.module_from_spec(theirs)


def _is_root(folder: str) -> bool:
    # An empty entry is the working directory.
    return Path(folder or ".").resolve() == ROOT
