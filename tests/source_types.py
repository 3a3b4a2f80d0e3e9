"""Our own source as the type checker sees it, as far as settings need it: where a name is defined, and of which of our
classes an expression is an instance, by the annotations of parameters, fields, properties and return values.
"""

from __future__ import annotations

import ast
import importlib
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from pydantic import BaseModel

from trainer.config.settings import Command, Section
from trainer.config.training import TraineeSettings

ROOT = Path(__file__).resolve().parents[1]
FOLDERS: tuple[Path, ...] = (ROOT,)
"""Where modules are looked for."""

CONFIG = "trainer.config."
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Definition(NamedTuple):
    """A function, a class or a constant at the top of one of our modules."""

    module: str
    name: str


Classes = frozenset[Definition]
UNKNOWN: Classes = frozenset()


# Sources


class Source(NamedTuple):
    """What a module defines and imports at any place, by name."""

    defined: dict[str, ast.stmt]
    imported: dict[str, Definition]


@cache
def source(module: str) -> Source:
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
    return Source(defined, imported)


def modules_in(package: str) -> Iterator[str]:
    for path in sorted(ROOT.joinpath(*package.split(".")).rglob("*.py")):
        if path.stem != "__init__":
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts)


def definition(at: Definition) -> Definition | None:
    """Where a name is really defined, imports followed; None for what is not ours."""
    while _path(at.module).is_file():
        found = source(at.module)
        if at.name in found.defined:
            return at
        if at.name not in found.imported:
            return None
        at = found.imported[at.name]
    return None


def _path(module: str) -> Path:
    paths = [folder.joinpath(*module.split(".")).with_suffix(".py") for folder in FOLDERS]
    return next((path for path in paths if path.is_file()), paths[0])


# Types


class Scope:
    """The names of a function, each with the classes that its value is an instance of."""

    def __init__(self, module: str, known: dict[str, Classes]) -> None:
        self.module = module
        self.known = known

    def within(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Scope:
        taken = {name: annotated(one, self.module) for name, one in parameters(function) if name != "self"}
        return Scope(self.module, self.known | taken)

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """What ``target = value`` tells."""
        if isinstance(target, ast.Name):
            self.known[target.id] = self.classes_of(value)
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, part in zip(target.elts, value.elts, strict=True):
                self.bind(one, part)

    def classes_of(self, node: ast.expr) -> Classes:
        """Of what an expression is an instance."""
        match node:
            case ast.Name(id=name):
                return self.known.get(name, UNKNOWN)
            case ast.Await(value=value):
                return self.classes_of(value)
            case ast.IfExp(body=body, orelse=otherwise):
                return self.classes_of(body) | self.classes_of(otherwise)
            case ast.BoolOp(values=values):
                return _union(self.classes_of(value) for value in values)
            case ast.Call(func=ast.Name(id=name)):
                at = definition(Definition(self.module, name))
                return UNKNOWN if at is None else _called(at)
            case ast.Attribute(value=value, attr=name) | ast.Call(func=ast.Attribute(value=value, attr=name)):
                return _union(_attribute(cls, name) for cls in self.classes_of(value))
        return UNKNOWN


def annotated(annotation: ast.expr | None, module: str) -> Classes:
    """Our classes that an annotation names: ``X``, ``X | None``, and the bound of a type variable."""
    match annotation:
        case ast.BinOp(left=left, right=right):
            return annotated(left, module) | annotated(right, module)
        case ast.Name(id=name):
            at = definition(Definition(module, name))
            if at is None:
                return UNKNOWN
            statement = source(at.module).defined[at.name]
            if isinstance(statement, ast.ClassDef):
                return frozenset({at})
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                return _union(annotated(one.value, at.module) for one in statement.value.keywords if one.arg == "bound")
    return UNKNOWN


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield one.arg, one.annotation


def fields(statement: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The annotated fields of a class, such as a dataclass has."""
    for node in statement.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation


def _called(at: Definition) -> Classes:
    """What calling a function or a class gives."""
    statement = source(at.module).defined[at.name]
    if isinstance(statement, ast.ClassDef):
        return frozenset({at})
    return annotated(statement.returns, at.module) if isinstance(statement, FUNCTIONS) else UNKNOWN


@cache
def _attribute(cls: Definition, name: str) -> Classes:
    """The classes of an attribute, or of what a method returns."""
    if is_config(cls):
        return _setting(runtime(cls), name)
    statement = source(cls.module).defined[cls.name]
    assert isinstance(statement, ast.ClassDef)
    found = _union(annotated(one, cls.module) for field, one in fields(statement) if field == name)
    for method in (node for node in statement.body if isinstance(node, FUNCTIONS)):
        found |= annotated(method.returns, cls.module) if method.name == name else _assigned(method, cls.module, name)
    bases = (definition(Definition(cls.module, base.id)) for base in statement.bases if isinstance(base, ast.Name))
    return found | _union(_attribute(base, name) for base in bases if base is not None)


def _assigned(method: ast.FunctionDef | ast.AsyncFunctionDef, module: str, name: str) -> Classes:
    """What ``method`` assigns to ``self.name``: mostly one of its parameters."""
    scope = Scope(module, {}).within(method)
    return _union(
        scope.classes_of(node.value)
        for node in ast.walk(method)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == name and ast.unparse(target.value) == "self"
    )


def _union(classes: Iterable[Classes]) -> Classes:
    return UNKNOWN.union(*classes)


# The classes of ``trainer.config``, which can be asked themselves


def is_config(cls: Definition) -> bool:
    return cls.module.startswith(CONFIG) and is_section(runtime(cls))


def is_section(cls: Any) -> TypeGuard[type]:
    return isinstance(cls, type) and issubclass(cls, (Command, Section, TraineeSettings))


def runtime(cls: Definition) -> type:
    found: type = getattr(importlib.import_module(cls.module), cls.name)
    return found


def fields_of(cls: type) -> dict[str, Any]:
    """The settings of a section, or what a backend is handed, with their types."""
    if issubclass(cls, BaseModel):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    return typing.get_type_hints(cls)


def _setting(owner: type, name: str) -> Classes:
    kind = owner if name == "model_copy" else fields_of(owner).get(name)
    method = getattr(owner, name, None)
    if kind is None and getattr(method, "__module__", "").startswith(CONFIG):
        kind = typing.get_type_hints(method).get("return")
    return frozenset({Definition(kind.__module__, kind.__name__)}) if is_section(kind) else UNKNOWN
