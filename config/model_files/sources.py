"""Inspects a model's source without running it: a frontend must not import the code of an executor."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder


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
    spec = find_module(module, path)
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        return False
    try:
        with tokenize.open(str(spec.origin)) as file:
            body = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return False
    # When the module binds the name anywhere else as well, its final value may be something else.
    bound = [each for each in ast.walk(ast.Module(body, [])) if _binds(each, name)]
    (only,) = bound if len(bound) == 1 else (None,)
    return isinstance(only, ast.FunctionDef) and only in body and not only.decorator_list


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in {name, "*"}
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
