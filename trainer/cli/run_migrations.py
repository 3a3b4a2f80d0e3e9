"""Bring the database up to date, or show which migrations are pending."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import say, say_json
from trainer.config.data_commands import MigrationSettings

if TYPE_CHECKING:
    from data_bridge.database import Database
    from data_bridge.migrate import MigrationState


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        work,
        MigrationSettings,
        argv,
        prog="run_migrations.py",
        description="Apply the pending migrations: Hindsight's own schema, and on an empty database the game's tables. "
        "On the game's database nothing in its own schema is touched.",
    )


async def work(settings: MigrationSettings) -> int:
    from data_bridge.migrate import read_states

    if settings.deed.url:
        return await _lend(settings)
    # Read-only, so that looking at a database never changes it; it also keeps an embedded server running.
    is_look = settings.deed.status or settings.deed.dry_run
    async with database_of(settings, read_only=True, existing=is_look) as database:
        before = await read_states(database.pool)
        skipped = await _skipped(database, before)
        if not is_look:
            async with database_of(settings, migrate=True):
                pass
        after = await read_states(database.pool)
    if settings.deed.status:
        _show(settings, database.label, [(state, state.word) for state in after])
    elif settings.deed.dry_run:
        _show(settings, database.label, [(state, _plan(state, skipped)) for state in after])
    else:
        done = [(new, _deed(old, new)) for old, new in zip(before, after, strict=True)]
        _show(settings, database.label, done)
    return 0


async def _lend(settings: MigrationSettings) -> int:
    """The embedded server stops when nobody uses it, so this command uses it as long as it runs."""
    if settings.secrets.database_url is not None:
        raise ConfigurationError("--url prints the embedded database's address, but DATABASE_URL is set already.")
    from data_bridge.embedded import EmbeddedServer

    async with database_of(settings, migrate=True):
        server = EmbeddedServer(settings.common.home / "postgres")
        await asyncio.to_thread(server.start)
        say(f"DATABASE_URL={server.url()}")
        say("The embedded database runs until this command is interrupted (Ctrl-C).", to=sys.stderr)
        try:
            await asyncio.Event().wait()
        finally:
            server.stop()
    return 0


async def _skipped(database: Database, states: Sequence[MigrationState]) -> bool:
    """Whether the game's tables would be left alone. DatabaseError on a database of some other application."""
    from data_bridge.migrate import GAME_TABLES, has_game_tables

    if not any(state.migration.number == GAME_TABLES and state.applied_at is None for state in states):
        return False
    async with database.pool.acquire() as connection:
        return await has_game_tables(connection)


def _plan(state: MigrationState, game_tables_exist: bool) -> str:
    from data_bridge.migrate import GAME_TABLES

    if state.word != "pending":
        return state.word
    would_skip = state.migration.number == GAME_TABLES and game_tables_exist
    return "would skip" if would_skip else "would apply"


def _deed(before: MigrationState, after: MigrationState) -> str:
    """``applied now`` also for migrations that another host applied while we waited."""
    return after.word if before.applied_at is not None else f"{after.word} now"


def _show(settings: MigrationSettings, label: str, rows: Sequence[tuple[MigrationState, str]]) -> None:
    if settings.output.json_output:
        listed = [
            {
                "number": state.migration.number,
                "name": state.migration.name,
                "state": word,
                "applied_at": state.applied_at.isoformat() if state.applied_at is not None else None,
                "checksum": state.migration.checksum,
            }
            for state, word in rows
        ]
        say_json({"database": label, "migrations": listed})
        return
    say(label)
    for state, word in rows:
        when = f"  {state.applied_at:%Y-%m-%d %H:%M} UTC" if state.applied_at is not None else ""
        reason = "  the game's own tables exist" if "skip" in word else ""
        say(f"  {state.migration.number:04d} {state.migration.name:<16} {word}{when}{reason}")
