"""Brings a database up to date: numbered SQL files, each in one transaction, each applied once.

``hindsight.migrations`` remembers what was applied, with a checksum. A transaction-level advisory lock lets two
hosts start at the same moment, also through a pooler. The game's own schema is never changed: the first migration,
which creates the game's tables, is only for a database that has no tables at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from data_bridge.errors import DatabaseError

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]

FOLDER = Path(__file__).parent / "migrations"
_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_LOCK = 0x68696E6473  # "hinds"; any number that no other program locks
GAME_TABLES = 1
"""Number of the migration that creates the game's own tables."""

_CREATE_JOURNAL = """
CREATE SCHEMA IF NOT EXISTS hindsight;
CREATE TABLE IF NOT EXISTS hindsight.migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    skipped boolean NOT NULL DEFAULT false,
    applied_at timestamptz NOT NULL DEFAULT now()
);
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        return f"{self.number:04d}_{self.name}.sql"


@dataclass(frozen=True, slots=True)
class MigrationState:
    """The state of one migration in a database. ``skipped``: the game's own tables already existed."""

    migration: Migration
    applied_at: datetime | None
    skipped: bool = False
    changed: bool = False

    @property
    def word(self) -> str:
        if self.changed:
            return "changed"
        if self.applied_at is None:
            return "pending"
        return "skipped" if self.skipped else "applied"


def load_migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """The migrations in ``folder``, in order. DatabaseError if two have the same number."""
    found: dict[int, Migration] = {}
    for path in sorted(folder.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise DatabaseError(f"{path.name} is not the name of a migration: write NNNN_name.sql.")
        migration = Migration(int(match["number"]), match["name"], path.read_text(encoding="utf-8"))
        if migration.number in found:
            raise DatabaseError(f"{path.name} has the number of {found[migration.number].file_name}: renumber it.")
        found[migration.number] = migration
    return tuple(found.values())


async def read_states(
    connection: Connection | Pool, migrations: Sequence[Migration] | None = None
) -> list[MigrationState]:
    """The state of each migration in the database. Read-only."""
    migrations = load_migrations() if migrations is None else migrations
    journal: dict[int, asyncpg.Record] = {}
    if await connection.fetchval("SELECT to_regclass('hindsight.migrations')") is not None:
        rows = await connection.fetch("SELECT number, checksum, skipped, applied_at FROM hindsight.migrations")
        journal = {row["number"]: row for row in rows}
    states = []
    for migration in migrations:
        row = journal.get(migration.number)
        if row is None:
            states.append(MigrationState(migration, None))
        else:
            changed = row["checksum"] != migration.checksum
            states.append(MigrationState(migration, row["applied_at"], row["skipped"], changed))
    return states


async def apply(target: Connection | Pool, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply pending migrations in order; returns those that this call applied. Writes nothing if none is pending.

    DatabaseError if a file was edited after it was applied, or if the database holds tables but not the game's.
    """
    if isinstance(target, asyncpg.Pool):
        async with target.acquire() as connection:
            return await apply(connection, migrations)
    states = await read_states(target, migrations)
    for state in states:
        if state.changed:
            raise DatabaseError(
                f"{state.migration.file_name} was edited after it was applied to this database: "
                "restore the file, and put the change into a new migration."
            )
    applied = []
    for state in states:
        if state.applied_at is None and await _apply_one(target, state.migration):
            applied.append(state.migration)
    return applied


async def _apply_one(connection: Connection, migration: Migration) -> bool:
    """False if another host applied it while we waited for the lock."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL client_min_messages = warning")
        await connection.execute(_CREATE_JOURNAL)
        known = "SELECT checksum FROM hindsight.migrations WHERE number = $1"
        if await connection.fetchval(known, migration.number) is not None:
            return False
        skipped = migration.number == GAME_TABLES and await has_game_tables(connection)
        if not skipped:
            await connection.execute(migration.sql, timeout=3600)
        await connection.execute(
            "INSERT INTO hindsight.migrations (number, name, checksum, skipped) VALUES ($1, $2, $3, $4)",
            migration.number,
            migration.name,
            migration.checksum,
            skipped,
        )
    return not skipped


async def has_game_tables(connection: Connection) -> bool:
    """True on the game's database, False on an empty one; DatabaseError on any other."""
    names = {
        row["relname"]
        for row in await connection.fetch(
            """
            SELECT relname FROM pg_class
            WHERE relnamespace = to_regnamespace(current_schema()) AND relkind IN ('r', 'p', 'v', 'm', 'f')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = pg_class.oid AND d.deptype = 'e')
            """
        )
    }
    if "trajectories" in names:
        return True
    if names:
        raise DatabaseError(
            f"This database holds other tables ({', '.join(sorted(names)[:3])}) but not the game's `trajectories`: "
            "point DATABASE_URL at the game's database, or at an empty one."
        )
    return False


async def owns_game_tables(connection: Connection) -> bool:
    """Whether we created the game's tables, so that we may add agents to ``"User"``."""
    if await connection.fetchval("SELECT to_regclass('hindsight.migrations')") is None:
        return False
    owned = "SELECT NOT skipped FROM hindsight.migrations WHERE number = $1"
    return bool(await connection.fetchval(owned, GAME_TABLES))
