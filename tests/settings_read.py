"""Which settings code reads, found in its source without running it.

The walk goes from definition to definition of our own packages, as they name each other. A class counts as a whole,
since its methods are not called by name. What is read is told by type: an attribute counts if it is taken of a
parameter that is annotated with a class of ``trainer.config``, of what was assigned from one, or of an attribute that
leads there (``self._settings.lookback``, ``session.settings.windows.lookback``, ``trainee_of(settings).seed``).
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tests.source_types import (
    CONFIG,
    FUNCTIONS,
    ROOT,
    Definition,
    Scope,
    annotated,
    definition,
    fields,
    fields_of,
    is_config,
    is_section,
    parameters,
    runtime,
    source,
)
from trainer.config.settings import Command


class Reads(NamedTuple):
    """What code reads: settings, each with the section that declares it; and whether it reveals a secret."""

    settings: frozenset[tuple[type, str]]
    reveals_secret: bool

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.settings}

    def unread(self, section: type) -> set[str]:
        """The settings of ``section`` that are not read, neither of it nor of a section that it is built from.

        Those of a section within (``TraineeSettings.training``) are told by themselves.
        """
        unread = set[str]()
        for name, kind in fields_of(section).items():
            if is_section(kind):
                unread |= self.unread(kind)
            elif not any((part, name) in self.settings for part in section.__mro__ if _declares(part, name)):
                unread.add(name)
        return unread


def commands() -> dict[str, type[Command]]:
    """Every command with its settings class, as it hands it to ``run_command``."""
    names = sorted(path.stem for path in (ROOT / "scripts").glob("[!_]*.py"))
    return {name: _settings_class(f"trainer.cli.{name}") for name in names}


def _settings_class(module: str) -> type[Command]:
    calls = (node for node in ast.walk(source(module).defined["main"]) if isinstance(node, ast.Call))
    (cls,) = (call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "run_command")
    assert isinstance(cls, ast.Name)
    found: type[Command] = getattr(importlib.import_module(module), cls.id)
    return found


def settings_read_by(command: str) -> Reads:
    """The settings that are read anywhere on the ways from the command's ``main``."""
    return reads_from(Definition(f"trainer.cli.{command}", "main"))


def reads_from(start: Definition) -> Reads:
    """What is read by ``start`` and whatever can be reached from it."""
    waiting, seen = [start], set[Definition]()
    read, reveals_secret = set[tuple[type, str]](), False
    while waiting:
        at = definition(waiting.pop())
        if at is None or at in seen:
            continue
        seen.add(at)
        facts = _facts(at)
        waiting += facts.named
        read |= facts.read
        reveals_secret |= facts.reveals_secret
    return Reads(frozenset(read), reveals_secret)


# One definition


class _Facts:
    """What a definition names and reads, and whether it reveals a secret."""

    def __init__(self) -> None:
        self.named: set[Definition] = set()
        self.read: set[tuple[type, str]] = set()
        self.reveals_secret = False


@cache
def _facts(at: Definition) -> _Facts:
    facts, statement = _Facts(), source(at.module).defined[at.name]
    if not (isinstance(statement, ast.ClassDef) and at.module.startswith(CONFIG)):  # checking a value is not a use
        _Visitor(facts, Scope(at.module, {})).visit(statement)
    return facts


class _Visitor(ast.NodeVisitor):
    """Walks a definition from top to bottom, so that it knows of each name what was assigned to it."""

    def __init__(self, facts: _Facts, scope: Scope) -> None:
        self.facts = facts
        self.scope = scope

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        own = {"self": frozenset({Definition(self.scope.module, node.name)})}
        _Visitor(self.facts, Scope(self.scope.module, self.scope.known | own)).generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        _Visitor(self.facts, self.scope.within(node)).generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self.scope.bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self.scope.known[node.target.id] = annotated(node.annotation, self.scope.module)

    def visit_Name(self, node: ast.Name) -> None:
        self.facts.named.add(Definition(self.scope.module, node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        module, imported = self.scope.module, source(self.scope.module).imported
        if isinstance(node.value, ast.Name) and node.value.id in imported:
            self.facts.named.add(Definition(".".join(imported[node.value.id]), node.attr))  # of an imported module
        self.facts.reveals_secret |= node.attr == "get_secret_value"
        # What is dumped is read where it is then chosen by its name.
        names = _words(module) if node.attr == "model_dump" else {node.attr}
        for cls in self.scope.classes_of(node.value):
            if is_config(cls):
                self.facts.read.update(one for name in names for one in _declared(runtime(cls), name))


@cache
def _words(module: str) -> frozenset[str]:
    """The strings in a module's source."""
    nodes = (node for top in source(module).defined.values() for node in ast.walk(top))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _declares(cls: type, name: str) -> bool:
    return name in inspect.get_annotations(cls)


def _declared(cls: type, name: str) -> set[tuple[type, str]]:
    """The setting, of the section that declares it; nothing if it is none, such as a section of a command."""
    if issubclass(cls, Command) or name not in fields_of(cls):
        return set()
    return {(next(part for part in cls.__mro__ if _declares(part, name)), name)}


# Who is handed settings


class Handed(NamedTuple):
    """A function or class, and settings that it is handed: alone, or within something that only holds them."""

    at: Definition
    settings: type


def handed(module: str) -> Iterator[Handed]:
    """Who in ``module`` is handed settings.

    A class is handed what its constructor and its other methods take, and its fields. One that only holds settings
    for others is handed none itself; those who are handed it are handed what it holds.
    """
    for name, statement in source(module).defined.items():
        if not _only_holds(statement):
            for annotation in _annotations(statement):
                yield from (Handed(Definition(module, name), cls) for cls in _settings_in(annotation, module))


def classes_in(module: str) -> set[Definition]:
    return {Definition(module, name) for name, at in source(module).defined.items() if isinstance(at, ast.ClassDef)}


def _annotations(statement: ast.stmt) -> Iterator[ast.expr | None]:
    """Of all parameters, and of the fields of a class."""
    for node in ast.walk(statement):
        if isinstance(node, FUNCTIONS):
            yield from (annotation for _, annotation in parameters(node))
        elif isinstance(node, ast.ClassDef):
            yield from (annotation for _, annotation in fields(node))


def _settings_in(annotation: ast.expr | None, module: str) -> Iterator[type]:
    """The settings that an annotation means, those inside of a holder included."""
    for cls in annotated(annotation, module):
        statement = source(cls.module).defined[cls.name]
        if is_config(cls):
            yield runtime(cls)
        elif isinstance(statement, ast.ClassDef) and _only_holds(statement):
            for _, inner in fields(statement):
                yield from _settings_in(inner, cls.module)


def _only_holds(statement: ast.stmt) -> bool:
    """Whether it is a class of fields and no method."""
    return isinstance(statement, ast.ClassDef) and not any(isinstance(node, FUNCTIONS) for node in statement.body)
