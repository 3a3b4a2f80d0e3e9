"""What is written for the next engineer agrees with the tree: the architecture page, and the stories of the rooms."""

from __future__ import annotations

import ast
import re
import tomllib
from enum import StrEnum
from pathlib import Path

import pytest

from trainer.ledger.states import BatchState, PromotionState, RunState, WindowState

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text()
PACKAGES = sorted(
    path.parent for package in ("trainer", "data_bridge") for path in (ROOT / package).rglob("__init__.py")
)
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("trainer", "data_bridge", "examples", "scripts", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
]


def room(name: str) -> str:
    """The text below one heading."""
    return PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_every_program_file_that_the_architecture_page_names_exists() -> None:
    named = {name for name in re.findall(r"`(?:python )?([\w/]+\.py)\b", PAGE) if "test_" not in name}
    assert len(named) > 40
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in FILES)] == []


def test_every_room_is_on_the_architecture_page() -> None:
    rooms = {path.name + "/" for path in PACKAGES if path.parent == ROOT / "trainer"}
    rooms |= {path.name for path in (ROOT / "trainer").glob("[a-z]*.py")}
    assert [one for one in sorted(rooms) if f"`trainer/{one}`" not in room("The rooms")] == []


def test_the_layers_on_the_architecture_page_are_those_of_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    shown = room("The layers").split("```")[1].split("\n")[1:-1]
    assert shown == ["scripts", *layers, "data_bridge"]


@pytest.mark.parametrize("states", [RunState, BatchState, WindowState, PromotionState])
def test_every_state_is_on_the_architecture_page(states: type[StrEnum]) -> None:
    assert [state.value for state in states if not re.search(rf"\b{state.value}\b", room("States"))] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_story_of_a_room_names_all_of_its_files(package: Path) -> None:
    story = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    parts = [path.stem for path in package.glob("*.py")] + [path.parent.name for path in package.glob("*/__init__.py")]
    assert [part for part in sorted(parts) if part != "__init__" and f"``{part}``" not in story] == []
