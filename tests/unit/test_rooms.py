"""The rooms keep to their work: SQL stands where its tables are at home, files are short, a name means one class."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("data_bridge", "trainer", "scripts") for path in (ROOT / room).rglob("*.py"))
MIGRATIONS = "\n".join(path.read_text() for path in sorted((ROOT / "data_bridge" / "migrations").glob("*.sql")))
MAX_LINES = 400

OWNERS_TABLES = {"window_facts"}
"""In our schema, but written by the game's owner: they are read and written where the game's tables are."""
LEDGER_TABLES = (set(re.findall(r"CREATE TABLE hindsight\.(\w+)", MIGRATIONS)) | {"migrations"}) - OWNERS_TABLES
GAME_TABLES = set(re.findall(r"^CREATE TABLE \"(\w+)\" ", MIGRATIONS, re.MULTILINE))

_LEDGER = re.compile(rf"\bhindsight\.(?:{'|'.join(sorted(LEDGER_TABLES))})\b")
_GAME = re.compile(
    r"(?:\b(?:FROM|INTO|UPDATE|JOIN|ONLY|TABLE|USING)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?|to_regclass\(')"
    r"(?:\"?[\w?]+\"?\.)?\"?"
    rf"(?:{'|'.join(sorted(GAME_TABLES))})\b"
)
"""Keywords in capitals, as all our SQL has them: `12 trajectories from trajectories` is prose."""


class Room(NamedTuple):
    """Tables, and the only code that may name them in SQL."""

    tables: str
    pattern: re.Pattern[str]
    homes: tuple[str, ...]


ROOMS = (
    Room("the ledger's tables", _LEDGER, ("trainer/ledger/", "data_bridge/migrate.py")),
    Room("the game's tables", _GAME, ("data_bridge/",)),
    Room("what the game's owner writes for us", re.compile(r"\bhindsight\.window_facts\b"), ("data_bridge/",)),
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Every text in ``source`` with its line, as it would be sent: parts joined, docstrings and values left out."""
    tree = ast.parse(source)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}

    def walk(node: ast.AST) -> Iterator[tuple[int, str]]:
        text = None if id(node) in told else _text_of(node)
        if text is not None and isinstance(node, ast.expr):
            yield node.lineno, text
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    return walk(tree)


def _text_of(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) or "?" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            joined = (_text_of(left), _text_of(right))
            return "".join(part or "?" for part in joined) if any(joined) else None
    return None


def misplaced(path: str, source: str) -> list[str]:
    """Where ``source``, the file at ``path``, has SQL on tables of another room."""
    return [
        f"{path}:{line + text[: found.start()].count(chr(10))}: SQL on {room.tables}: {found[0]}"
        for line, text in texts(source)
        for room in ROOMS
        if not path.startswith(room.homes)
        for found in room.pattern.finditer(text)
    ]


def test_sql_on_the_ledger_and_on_the_games_tables_stands_only_in_their_rooms() -> None:
    assert {"runs", "verdicts", "promotions", "periods", "simulated_windows"} <= LEDGER_TABLES
    assert {"trajectories", "market_outcomes", "llm_call_logs", "trained_models", "User"} <= GAME_TABLES
    found = [fault for path in SOURCES for fault in misplaced(str(path.relative_to(ROOT)), path.read_text())]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("trainer/report/page.py", 'fetch("SELECT 1 FROM hindsight.runs")', 1),
        ("trainer/cli/x.py", 'fetch("SELECT r.run_id FROM"\n      " hindsight.runs r")', 1),
        ("trainer/cli/x.py", "fetchval(\"SELECT to_regclass('hindsight.runs')\")", 1),
        ("trainer/cli/x.py", 'lock = f"LOCK TABLE hindsight.checkpoints IN {mode}"', 1),
        ("data_bridge/reader.py", 'X = """\nSELECT *\nFROM hindsight.windows\n"""', 3),
        ("trainer/ledger/runs.py", "query = f'SELECT {columns} FROM trajectories WHERE x'", 1),
        ("trainer/ledger/runs.py", "query = 'SELECT 1 ' + 'FROM ' + 'trajectories'", 1),
        ("trainer/promote/x.py", "x = 1\nexecute('INSERT INTO \"User\" (id) VALUES ($1)')", 2),
        ("trainer/promote/x.py", "query = f'UPDATE {schema}.trained_models SET status = $1'", 1),
        ("scripts/x.py", "execute('DELETE FROM public.reward_judgments')", 1),
        ("trainer/ledger/x.py", "execute('SELECT 1 FROM hindsight.window_facts')", 1),
        ("scripts/x.py", "call('SELECT 1 FROM a JOIN llm_call_logs l USING (id)')", 1),
    ],
)
def test_sql_in_another_room_would_be_found(path: str, source: str, line: int) -> None:
    (fault,) = misplaced(path, source)
    assert fault.startswith(f"{path}:{line}: SQL on ")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("trainer/ledger/read/windows.py", 'fetch("SELECT 1 FROM hindsight.windows")'),
        ("data_bridge/migrate.py", 'fetch("SELECT number FROM hindsight.migrations")'),
        ("data_bridge/reader.py", "fetch('SELECT 1 FROM trajectories')"),
        ("trainer/judge/ruler.py", '"""Stored in hindsight.verdicts; read FROM trajectories."""'),
        ("trainer/types.py", 'key: str\n"""The key under which ``hindsight.verdicts`` holds it."""'),
        ("trainer/cli/x.py", 'say("12 trajectories from trajectories that were left out")'),
        ("trainer/cli/x.py", 'fetch("SELECT count(*) AS trajectories FROM nothing")'),
    ],
)
def test_sql_at_home_and_prose_are_left_alone(path: str, source: str) -> None:
    assert misplaced(path, source) == []


def test_no_file_is_longer_than_can_be_read_at_once() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES}
    assert len(lines) > 100
    assert {name: number for name, number in lines.items() if number > MAX_LINES} == {}


def test_a_class_name_means_one_class() -> None:
    homes = defaultdict[str, list[str]](list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(homes) > 200
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
