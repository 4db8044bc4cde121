"""Inspects a model's source without running it: a frontend must not import the code of an executor."""

from __future__ import annotations

import ast
import contextlib
import tokenize
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

# Base classes in turn, up to this many, and from as many modules.
_DEEPEST = 8


def find_module(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """The spec of a module on `path`, or None. Unlike `importlib.util.find_spec`, it imports no parent package."""
    found, spec = list(path), None
    for part in module.split("."):
        # Searched by its last name alone: for a folder without `__init__.py` Python would look for the parent package.
        spec = PathFinder.find_spec(part, found)
        if spec is None:
            return None
        found = list(spec.submodule_search_locations or ())
    return spec


def is_plain_function(source: str, path: Sequence[str]) -> bool:
    """Return whether `package.module:name` is plainly a function: defined once in that module, by a `def` without
    decorators.

    False also where that cannot be seen: the module is compiled, elsewhere, or gets the name from another.
    """
    module, _, name = source.partition(":")
    body = _body_of(module, path)
    # When the module binds the name anywhere else as well, its final value may be something else.
    bound = [each for each in ast.walk(ast.Module(body, [])) if _binds(each, name)]
    (only,) = bound if len(bound) == 1 else (None,)
    return isinstance(only, ast.FunctionDef) and only in body and not only.decorator_list


def class_literals(source: str, path: Sequence[str], names: Collection[str]) -> dict[str, Any]:
    """The values that the class `package.module:Name` gives to the attributes `names`: literals in its body, or in that
    of a base class of the same module or imported with `from … import`.

    What cannot be seen is left out: a computed value, a class that is made by a call, a module that is not here.
    """
    module, _, name = source.partition(":")
    found: dict[str, Any] = {}
    for each in _line_of(module, name, path, _DEEPEST):
        for attribute, value in _assigned(each, names):
            found.setdefault(attribute, value)
    return found


def _line_of(module: str, name: str, path: Sequence[str], deepest: int) -> Iterator[ast.ClassDef]:
    """A class and its bases, in the order in which Python looks for attributes, as far as they can be seen."""
    body = _body_of(module, path) if deepest else []
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            yield node
            for base in node.bases:
                if isinstance(base, ast.Name):
                    yield from _line_of(module, base.id, path, deepest - 1)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield from _line_of(node.module, alias.name, path, deepest - 1)


def _assigned(node: ast.ClassDef, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    # The last assignment is the one that counts.
    for each in reversed(node.body):
        if isinstance(each, ast.Assign):
            targets = each.targets
        elif isinstance(each, ast.AnnAssign) and each.value is not None:
            targets = [each.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and target.id in names and each.value is not None:
                with contextlib.suppress(ValueError):
                    yield target.id, ast.literal_eval(each.value)


def _body_of(module: str, path: Sequence[str]) -> list[ast.stmt]:
    """The statements of a module, without running it; none if its source is not here."""
    spec = find_module(module, path)
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        return []
    try:
        with tokenize.open(str(spec.origin)) as file:
            return ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return []


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in {name, "*"}
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
