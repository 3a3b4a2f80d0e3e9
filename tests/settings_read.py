"""Which settings the code of a command reads, found in its source without running it.

The walk goes from definition to definition of our own packages, as they name each other, and notes the attributes
that are taken of anything called ``settings``. A class counts as a whole, since its methods are not called by name.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trainer.config.sources import Section

ROOT = Path(__file__).resolve().parents[1]


class Definition(NamedTuple):
    module: str
    name: str


class _Source(NamedTuple):
    defined: dict[str, ast.stmt]
    imported: dict[str, Definition]


def commands() -> dict[str, type[Section]]:
    """Every command with its settings class, as it hands it to ``run_command``."""
    names = sorted(path.stem for path in (ROOT / "scripts").glob("[!_]*.py"))
    return {name: _settings_class(f"trainer.cli.{name}") for name in names}


def _settings_class(module: str) -> type[Section]:
    calls = (node for node in ast.walk(_source(module).defined["main"]) if isinstance(node, ast.Call))
    (cls,) = (call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "run_command")
    assert isinstance(cls, ast.Name)
    found: type[Section] = getattr(importlib.import_module(module), cls.id)
    return found


def settings_read_by(command: str) -> set[str]:
    """The names of the settings that are read anywhere on the ways from the command's ``main``."""
    waiting, seen, read = [Definition(f"trainer.cli.{command}", "main")], set[Definition](), set[str]()
    while waiting:
        at = waiting.pop()
        if at in seen or not _path(at.module).is_file():
            continue
        seen.add(at)
        source = _source(at.module)
        if at.name in source.imported:
            waiting.append(source.imported[at.name])
        for node in ast.walk(source.defined.get(at.name, ast.Pass())):
            waiting += _named_by(node, at.module, source)
            if isinstance(node, ast.Attribute) and _is_settings(node.value):
                read.add(node.attr)
    return read


def _named_by(node: ast.AST, module: str, source: _Source) -> Iterator[Definition]:
    if isinstance(node, ast.Name):
        if node.id in source.defined:
            yield Definition(module, node.id)
        elif node.id in source.imported:
            yield source.imported[node.id]
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in source.imported:
        yield Definition(".".join(source.imported[node.value.id]), node.attr)  # `dropout.plan`, of an imported module


def _is_settings(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_") == "settings"


@cache
def _source(module: str) -> _Source:
    tree = ast.parse(_path(module).read_text())
    defined: dict[str, ast.stmt] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            defined |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
    imported = {
        alias.asname or alias.name: Definition(node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return _Source(defined, imported)


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")
