"""The simulated market's state in Postgres: what was played, and the planted truth. For replay, never for training.

This module knows nothing about markets or accounts: a world is four settings, and prices and limits are JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import asyncpg

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError

World = tuple[int, float, str, int]
"""The settings that make a simulated market: seed, luck, stage, decisions."""

_WINDOWS = """
SELECT window_id, world_seed, luck, stage, decisions, prompt_version, window_index, limits, tape
FROM hindsight.simulated_windows WHERE window_id = ANY($1) AND tape <> 'null'
"""
# A window is claimed before its rows are written, and its tape is null until they are: JSON's null, not SQL's.
_CLAIM_WINDOW = """
INSERT INTO hindsight.simulated_windows
    (window_id, world_seed, luck, stage, decisions, prompt_version, window_index, limits, tape)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, 'null')
ON CONFLICT (window_id) DO NOTHING
"""
_REMEMBER_WINDOW = """
UPDATE hindsight.simulated_windows
SET prompt_version = $2, window_index = $3, limits = $4::jsonb, tape = $5::jsonb, tried = $6, succeeded = $7,
    states = $8
WHERE window_id = $1
"""
_SETTINGS = """
SELECT window_id, world_seed, luck, stage, decisions, prompt_version AS edition, tape <> 'null' AS is_played
FROM hindsight.simulated_windows WHERE window_id = ANY($1) ORDER BY window_id
"""
_REMEMBER_AGENTS = """
INSERT INTO hindsight.simulated_agents
    (agent_id, world_seed, agent_index, name, role, starting_balance, balance, lifetime_pnl, skill)
SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::int[], $4::text[], $5::text[], $6::float8[], $7::float8[], $8::float8[], $9::float8[])
ON CONFLICT (agent_id) DO UPDATE SET balance = EXCLUDED.balance, lifetime_pnl = EXCLUDED.lifetime_pnl
"""
MAY_READ = """
SELECT EXISTS (
  SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
  WHERE nspname = 'hindsight' AND relname = $1
    AND has_schema_privilege(pg_namespace.oid, 'USAGE') AND has_table_privilege(pg_class.oid, 'SELECT'))
"""


class SimulatedWindowRow(NamedTuple):
    """A window of a simulated market, in the order of the table's columns; a replay reads those up to the tape."""

    window_id: str
    world_seed: int
    luck: float
    stage: str
    decisions: int
    edition: str
    """Of the world that played it; the column is called prompt_version."""
    window_index: int
    """How many windows this world had played before."""
    limits: str
    tape: str
    tried: int | None = None
    """Agents that did not explore; None for a window from before there was a curriculum."""
    succeeded: int | None = None
    """Of them, those that ended it with a profit."""
    states: tuple[str, ...] = ()
    """The signatures of the states in which its decisions were made."""


class SimulatedAgentRow(NamedTuple):
    """An agent and its account after its last window, in the order of the table's columns."""

    agent_id: str
    world_seed: int
    agent_index: int
    name: str
    role: str
    starting_balance: float
    balance: float
    lifetime_pnl: float
    skill: float | None
    """The planted truth; None for an agent that a model plays."""


async def claim(database: Database, windows: Sequence[SimulatedWindowRow]) -> None:
    """Claim the windows for their world before their rows are written; ConfigurationError if another world has one.

    A process killed between this and ``remember`` can continue with the same settings. Of two worlds that claim an hour
    at the same moment one is refused, before it has written to it.
    """
    worlds: dict[str, World] = {one.window_id: (one.world_seed, one.luck, one.stage, one.decisions) for one in windows}
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.executemany(_CLAIM_WINDOW, [window[:8] for window in windows])
        claimed = await connection.fetch(_SETTINGS, list(worlds))
        played = _played(worlds, windows[0].edition, claimed)
    if played:
        raise ConfigurationError(
            f"Window {min(played)} was just played by another process with the same settings: run again."
        )


async def remember(
    database: Database, windows: Sequence[SimulatedWindowRow], agents: Sequence[SimulatedAgentRow]
) -> None:
    """Store the claimed windows as played and the agents' accounts after the last, in one transaction."""
    updates = [
        (row.window_id, row.edition, row.window_index, row.limits, row.tape, row.tried, row.succeeded, list(row.states))
        for row in windows
    ]
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.executemany(_REMEMBER_WINDOW, updates)
        await connection.execute(_REMEMBER_AGENTS, *zip(*agents, strict=True))


async def unplayed(database: Database, worlds: Mapping[str, World], edition: str) -> list[str]:
    """The windows of ``worlds`` that were not played yet; an hour belongs to one world only."""
    played = _played(worlds, edition, await database.pool.fetch(_SETTINGS, list(worlds)))
    return [window_id for window_id in worlds if window_id not in played]


def _played(worlds: Mapping[str, World], edition: str, rows: Sequence[asyncpg.Record]) -> set[str]:
    """The windows that their world has played; ConfigurationError if one of them belongs to another world.

    Hours that another edition has played are played. An hour that it began cannot be finished by this one.
    """
    for window_id, *settings, begun_by, is_played in rows:
        if tuple(settings) != worlds[window_id]:
            raise ConfigurationError(
                f"Window {window_id} was already simulated with other settings (seed, luck, stage, decisions: "
                f"{', '.join(map(str, settings))}): choose other hours with --start, or another --home."
            )
        if not is_played and begun_by != edition:
            raise ConfigurationError(
                f"Window {window_id} was begun by edition {begun_by} of the simulated market and interrupted; this is "
                f"edition {edition}, which cannot finish it: choose other hours with --start, or another --home."
            )
    return {row["window_id"] for row in rows if row["is_played"]}


async def played_windows(database: Database, window_ids: Iterable[str]) -> list[SimulatedWindowRow]:
    """The simulated ones among ``window_ids``."""
    return [SimulatedWindowRow(*row) for row in await database.pool.fetch(_WINDOWS, list(window_ids))]


async def windows_played(database: Database, seed: int) -> int:
    """How many windows the world of ``seed`` has played so far."""
    query = "SELECT count(*) FROM hindsight.simulated_windows WHERE world_seed = $1 AND tape <> 'null'"
    return int(await database.pool.fetchval(query, seed))


async def known_states(database: Database, seed: int, before: str) -> dict[str, int]:
    """How often the world of ``seed`` has met each state before the window ``before``, by signature."""
    rows = await database.pool.fetch(
        "SELECT state, count(*) AS times FROM hindsight.simulated_windows, unnest(states) AS state"
        " WHERE world_seed = $1 AND window_id < $2 AND tape <> 'null' GROUP BY state ORDER BY state",
        *(seed, before),
    )
    return {row["state"]: row["times"] for row in rows}


async def newest_simulated(database: Database) -> str | None:
    """The newest window that was ever played here; None if there is none, or the table is missing or not readable."""
    if not await database.pool.fetchval(MAY_READ, "simulated_windows"):
        return None
    newest: str | None = await database.pool.fetchval("SELECT max(window_id) FROM hindsight.simulated_windows")
    return newest


async def balances(database: Database, agent_ids: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Balance and lifetime P&L of those agents that have played before."""
    query = "SELECT agent_id, balance, lifetime_pnl FROM hindsight.simulated_agents WHERE agent_id = ANY($1)"
    rows = await database.pool.fetch(query, list(agent_ids))
    return {row["agent_id"]: (row["balance"], row["lifetime_pnl"]) for row in rows}


async def planted_skills(database: Database) -> dict[str, float]:
    """The planted truth: agent id → skill. For tests of the trainer and of judges; never shown to them."""
    rows = await database.pool.fetch("SELECT agent_id, skill FROM hindsight.simulated_agents WHERE skill IS NOT NULL")
    return {row["agent_id"]: row["skill"] for row in rows}
