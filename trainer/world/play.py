"""Plays windows into the database: the agents play, the recorder writes, the outcomes close the window.

A window that has been played is left alone, so that an interrupted call can be made again and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.migrate import has_game_tables, owns_game_tables
from data_bridge.recorder import Recorder
from trainer.world.cast import Agent
from trainer.world.exploration import DEFAULT_EXPLORATION, Exploration
from trainer.world.guard import DEFAULT_LIMITS, Limits
from trainer.world.market import Market
from trainer.world.player import PlayedHour, Player
from trainer.world.record import record_hour
from trainer.world.store import claim, load_books, remember, unplayed, windows_played
from trainer.world.tally import Tally


async def play_windows(
    database: Database,
    spool_dir: Path,
    market: Market,
    cast: Sequence[Agent],
    window_ids: Sequence[str],
    *,
    exploration: Exploration = DEFAULT_EXPLORATION,
    limits: Limits = DEFAULT_LIMITS,
    lookahead: int = 0,
    write_together: int = 1,
    on_window: Callable[[PlayedHour], None] | None = None,
) -> Tally:
    """Play those of ``window_ids`` that have not been played, in order; what came of them, by agent.

    ``lookahead`` more windows are asked about in advance, for models that answer many requests at once.
    ``write_together`` windows are written at once: faster, and what an interruption costs if playing is slow.
    """
    await refuse_a_live_game(database)
    todo = await unplayed(database, market, window_ids)
    first_index = await windows_played(database, market.seed)
    player = Player(market, cast, exploration, limits)
    player.resume(await load_books(database, cast))
    tally = Tally()
    async with Recorder(database, spool_dir) as recorder:
        waiting: list[PlayedHour] = []

        async def write() -> None:
            index = first_index + tally.windows
            await claim(database, market, limits, [played.hour.window_id for played in waiting], index)
            await asyncio.gather(*(record_hour(recorder, database, played, market.seed) for played in waiting))
            await remember(database, market, limits, waiting, index)
            for played in waiting:
                tally.add(played)
                if on_window is not None:
                    on_window(played)
            waiting.clear()

        async with aclosing(player.play(todo, first_index=first_index, lookahead=lookahead)) as hours:
            async for played in hours:
                waiting.append(played)
                if len(waiting) >= write_together:
                    await write()
        if waiting:
            await write()
        await recorder.flush()
    return tally


async def refuse_a_live_game(database: Database) -> None:
    """ConfigurationError for a database whose tables are a game's own; only reads, so that nothing is left there."""
    async with database.pool.acquire() as connection:
        if await has_game_tables(connection) and not await owns_game_tables(connection):
            raise ConfigurationError(
                f"{database.label} belongs to a game: simulated agents would mix with real ones; "
                "unset DATABASE_URL, or name an empty database."
            )
