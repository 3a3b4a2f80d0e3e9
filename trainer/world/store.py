"""The simulated market's memory in Postgres: what was played, and the planted truth. For replay, never for training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

import asyncpg
import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.world.books import Book
from trainer.world.cast import Agent
from trainer.world.exchange import Tape
from trainer.world.guard import Limits
from trainer.world.market import Market
from trainer.world.player import PlayedHour
from trainer.world.prompt import PROMPT_VERSION
from trainer.world.replay import SimulatedWindow

_WINDOWS = """
SELECT window_id, world_seed, luck, stage, decisions, prompt_version, limits, tape
FROM hindsight.simulated_windows WHERE window_id = ANY($1) AND tape <> 'null'
"""
# A window is claimed before its rows are written, and has no tape until they are: JSON's null, not SQL's.
_CLAIM_WINDOW = """
INSERT INTO hindsight.simulated_windows
    (window_id, world_seed, luck, stage, decisions, prompt_version, window_index, limits, tape)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, 'null')
ON CONFLICT (window_id) DO NOTHING
"""
_REMEMBER_WINDOW = """
UPDATE hindsight.simulated_windows
SET prompt_version = $2, window_index = $3, limits = $4::jsonb, tape = $5::jsonb WHERE window_id = $1
"""
_SETTINGS = """
SELECT window_id, world_seed, luck, stage, decisions, tape <> 'null' AS is_played
FROM hindsight.simulated_windows WHERE window_id = ANY($1) ORDER BY window_id
"""
_REMEMBER_AGENTS = """
INSERT INTO hindsight.simulated_agents
    (agent_id, world_seed, agent_index, name, role, starting_balance, balance, lifetime_pnl, skill)
SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::float8[], $7::float8[], $8::float8[], $9::float8[])
ON CONFLICT (agent_id) DO UPDATE SET balance = EXCLUDED.balance, lifetime_pnl = EXCLUDED.lifetime_pnl
"""


async def claim(
    database: Database, market: Market, limits: Limits, window_ids: Sequence[str], first_index: int
) -> None:
    """Make the windows this world's, before anything of them is written; ConfigurationError if they are another's.

    Who is killed between this and ``remember`` goes on with the same settings. Of two worlds that want an hour at the
    same moment one is refused, before it has written into it.
    """
    world = (market.seed, market.luck, market.stage, market.decisions, PROMPT_VERSION)
    claims = [
        (window_id, *world, index, _limits_json(limits))
        for index, window_id in enumerate(window_ids, start=first_index)
    ]
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.executemany(_CLAIM_WINDOW, claims)
        played = _played(market, await connection.fetch(_SETTINGS, list(window_ids)))
    if played:
        raise ConfigurationError(
            f"Window {min(played)} was just played by another process with the same settings: run again."
        )


async def remember(
    database: Database, market: Market, limits: Limits, played: Sequence[PlayedHour], first_index: int
) -> None:
    """Keep the claimed windows and the agents' books after the last, in one transaction: now they have been played."""
    windows = [
        (hour.hour.window_id, PROMPT_VERSION, index, _limits_json(limits), msgspec.json.encode(hour.tape).decode())
        for index, hour in enumerate(played, start=first_index)
    ]
    lives = played[-1].agents
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.executemany(_REMEMBER_WINDOW, windows)
        await connection.execute(
            _REMEMBER_AGENTS,
            [life.agent.agent_id for life in lives],
            [market.seed] * len(lives),
            [life.agent.index for life in lives],
            [life.agent.name for life in lives],
            [life.agent.role for life in lives],
            [life.agent.starting_balance for life in lives],
            [life.after.balance for life in lives],
            [life.after.lifetime_pnl for life in lives],
            [life.agent.skill for life in lives],
        )


async def load_windows(database: Database, window_ids: Iterable[str]) -> dict[str, SimulatedWindow]:
    """The simulated ones among ``window_ids``, ready to replay; those of an older prompt are left out."""
    rows = await database.pool.fetch(_WINDOWS, list(window_ids))
    return {
        row["window_id"]: SimulatedWindow(
            row["window_id"],
            Market(row["world_seed"], row["luck"], row["stage"], row["decisions"]),
            msgspec.json.decode(row["tape"], type=Tape),
            msgspec.json.decode(row["limits"], type=Limits),
        )
        for row in rows
        if row["prompt_version"] == PROMPT_VERSION
    }


async def unplayed(database: Database, market: Market, window_ids: Sequence[str]) -> list[str]:
    """Those of ``window_ids`` that this world has not played yet; an hour has one world only."""
    played = _played(market, await database.pool.fetch(_SETTINGS, list(window_ids)))
    return [window_id for window_id in window_ids if window_id not in played]


def _played(market: Market, rows: Sequence[asyncpg.Record]) -> set[str]:
    """The windows that ``market`` has played; ConfigurationError if one of them is another world's."""
    for window_id, *settings, _ in rows:
        if Market(*settings) != market:
            raise ConfigurationError(
                f"Window {window_id} was already simulated with other settings (seed, luck, stage, decisions: "
                f"{', '.join(map(str, settings))}): choose other hours with --start, or another --home."
            )
    return {row["window_id"] for row in rows if row["is_played"]}


def _limits_json(limits: Limits) -> str:
    return msgspec.json.encode(asdict(limits)).decode()


async def windows_played(database: Database, seed: int) -> int:
    """How many windows the world of ``seed`` has played so far."""
    query = "SELECT count(*) FROM hindsight.simulated_windows WHERE world_seed = $1 AND tape <> 'null'"
    return int(await database.pool.fetchval(query, seed))


async def load_books(database: Database, cast: Sequence[Agent]) -> dict[str, Book]:
    """The books of those of ``cast`` that have played before."""
    query = "SELECT agent_id, balance, lifetime_pnl FROM hindsight.simulated_agents WHERE agent_id = ANY($1)"
    rows = await database.pool.fetch(query, [agent.agent_id for agent in cast])
    return {row["agent_id"]: Book(row["balance"], row["lifetime_pnl"]) for row in rows}


async def planted_skills(database: Database) -> dict[str, float]:
    """The planted truth: agent id → skill. For tests of the trainer and of judges, never for what they are shown."""
    rows = await database.pool.fetch("SELECT agent_id, skill FROM hindsight.simulated_agents WHERE skill IS NOT NULL")
    return {row["agent_id"]: row["skill"] for row in rows}
