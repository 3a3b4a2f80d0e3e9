"""Migrations: once each, by whoever comes first, and never a finger on the game's own tables."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import open_database
from data_bridge.errors import DatabaseError
from data_bridge.migrate import FOLDER, GAME_TABLES, Migration, apply, load_migrations, read_states

ROOT = Path(__file__).parents[2]
MakeDatabase = Callable[..., str]

FIRST = Migration(11, "first", "CREATE SCHEMA IF NOT EXISTS hindsight; CREATE TABLE hindsight.first (a int)")
SECOND = Migration(
    12, "second", "ALTER TABLE hindsight.first ADD COLUMN b int; INSERT INTO hindsight.first VALUES (1, 2)"
)

_CATALOG = """
SELECT 'column' AS kind, format('%s.%s %s %s %s', c.relname, a.attname, a.atttypid::regtype, a.atttypmod, a.attnotnull)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0
UNION ALL SELECT 'default', format('%s %s %s', adrelid::regclass, adnum, pg_get_expr(adbin, adrelid)) FROM pg_attrdef
  WHERE adrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
UNION ALL SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'constraint', format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
  WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger', pg_get_triggerdef(oid) FROM pg_trigger
  WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
UNION ALL SELECT 'relation', format('%s %s %s %s', relname, relkind, relacl, reloptions) FROM pg_class
  WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'type', typname FROM pg_type WHERE typnamespace = 'public'::regnamespace
UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%'
ORDER BY 1, 2
"""


async def make_game(url: str) -> None:
    """The game's database, as its own tools leave it: tables, one of them with a column we do not know, and rows."""
    (game,) = [migration for migration in load_migrations() if migration.number == GAME_TABLES]
    connection = await asyncpg.connect(url)
    await connection.execute(game.sql)
    await connection.execute(
        'ALTER TABLE trajectories ADD COLUMN archetype text; CREATE TABLE "Post" (id int);'
        "INSERT INTO \"User\" (id) VALUES ('agent-1')"
    )
    await connection.close()


def run_migrations(url: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "run_migrations.py"), "--home", str(home), *arguments]
    environment = {"DATABASE_URL": url, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)


async def test_on_the_games_database_nothing_in_public_is_touched(make_database: MakeDatabase, tmp_path: Path) -> None:
    url = make_database()
    await make_game(url)
    connection = await asyncpg.connect(url)
    before = await connection.fetch(_CATALOG)

    async with open_database(url, tmp_path, migrate=True) as database:
        states = await read_states(database.pool)

    after = await connection.fetch(_CATALOG)
    await connection.close()
    assert [tuple(row) for row in after if row not in before] == [("schema", "hindsight")]
    assert [row for row in before if row not in after] == []
    assert [state.word for state in states if state.migration.number == GAME_TABLES] == ["skipped"]
    assert {state.word for state in states if state.migration.number != GAME_TABLES} == {"applied"}


async def test_an_empty_database_gets_the_games_tables(make_database: MakeDatabase, tmp_path: Path) -> None:
    url = make_database()
    async with open_database(url, tmp_path, migrate=True) as database:
        nullable = await database.pool.fetch(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_name = 'trajectories' AND is_nullable = 'NO' AND column_default IS NULL"
        )
        indexes = await database.pool.fetch("SELECT indexname FROM pg_indexes WHERE tablename = 'trajectories'")
    assert "updatedAt" in {row[0] for row in nullable}
    assert {"trajectories_windowId_agentId_idx", "trajectories_trajectoryId_key"} <= {row[0] for row in indexes}


async def test_somebody_elses_database_is_refused_and_left_as_it_was(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    url = make_database()
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE customers (id int)")
    before = await connection.fetch(_CATALOG)

    with pytest.raises(DatabaseError, match=r"customers.*not the game's `trajectories`"):
        async with open_database(url, tmp_path, migrate=True):
            pass

    assert await connection.fetch(_CATALOG) == before
    await connection.close()


async def test_two_hosts_start_at_once(make_database: MakeDatabase) -> None:
    url = make_database()
    slow = replace(FIRST, sql=f"SELECT pg_sleep(0.3); {FIRST.sql}")

    async def host() -> list[Migration]:
        connection = await asyncpg.connect(url)
        try:
            return await apply(connection, [slow, SECOND])
        finally:
            await connection.close()

    applied = await asyncio.gather(*(host() for _ in range(5)))

    assert sorted(migration.number for each in applied for migration in each) == [11, 12]
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT count(*) FROM hindsight.first") == 1
    await connection.close()


async def test_a_migration_that_fails_leaves_no_trace_and_the_earlier_ones_stay(make_database: MakeDatabase) -> None:
    connection = await asyncpg.connect(make_database())
    broken = replace(SECOND, sql="CREATE TABLE hindsight.half (a int); SELECT 1/0")

    with pytest.raises(asyncpg.DivisionByZeroError):
        await apply(connection, [FIRST, broken])

    assert [state.word for state in await read_states(connection, [FIRST, SECOND])] == ["applied", "pending"]
    assert await connection.fetchval("SELECT to_regclass('hindsight.half')") is None
    assert await apply(connection, [FIRST, SECOND]) == [SECOND]
    await connection.close()


async def test_an_edited_migration_is_refused_by_name(make_database: MakeDatabase) -> None:
    connection = await asyncpg.connect(make_database())
    await apply(connection, [FIRST])
    edited = replace(FIRST, sql=FIRST.sql + "; DROP TABLE hindsight.first")
    with pytest.raises(DatabaseError, match=r"0011_first\.sql was edited"):
        await apply(connection, [edited, SECOND])
    assert [state.word for state in await read_states(connection, [edited, SECOND])] == ["changed", "pending"]
    await connection.close()


async def test_an_up_to_date_database_needs_no_right_to_write(database_url: str, tmp_path: Path) -> None:
    async with open_database(database_url, tmp_path, migrate=True, read_only=True) as database:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await database.pool.execute("CREATE TABLE x (a int)")


def test_every_shipped_migration_but_the_first_keeps_to_our_schema() -> None:
    migrations = load_migrations()
    assert [migration.number for migration in migrations] == list(range(1, len(migrations) + 1))
    for migration in migrations[1:]:
        created = [line for line in migration.sql.splitlines() if line.startswith(("CREATE TABLE", "CREATE VIEW"))]
        assert all("hindsight." in line for line in created), migration.file_name


def test_two_files_with_one_number_are_refused(tmp_path: Path) -> None:
    for name in ("0001_a.sql", "0001_b.sql"):
        (tmp_path / name).write_text("SELECT 1")
    with pytest.raises(DatabaseError, match=r"0001_b\.sql has the number of 0001_a\.sql"):
        load_migrations(tmp_path)


def test_a_file_with_another_kind_of_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fix.sql").write_text("SELECT 1")
    with pytest.raises(DatabaseError, match=r"NNNN_name\.sql"):
        load_migrations(tmp_path)


def states_of(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return {migration["state"] for migration in shown["migrations"]}


def test_the_command_shows_plans_and_applies(make_database: MakeDatabase, tmp_path: Path) -> None:
    url = make_database()
    assert states_of(run_migrations(url, tmp_path, "--dry-run", "--json")) == {"would apply"}
    assert states_of(run_migrations(url, tmp_path, "--status", "--json")) == {"pending"}
    assert states_of(run_migrations(url, tmp_path, "--json")) == {"applied now"}
    assert "0001 game_tables      applied" in run_migrations(url, tmp_path).stdout


def test_the_command_refuses_somebody_elses_database(make_database: MakeDatabase, tmp_path: Path) -> None:
    url = make_database()

    async def make_shop() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE customers (id int)")
        await connection.close()

    asyncio.run(make_shop())
    done = run_migrations(url, tmp_path, "--dry-run")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "customers" in done.stderr


def test_the_folder_ships_with_the_package() -> None:
    assert (FOLDER / "0001_game_tables.sql").is_file()
