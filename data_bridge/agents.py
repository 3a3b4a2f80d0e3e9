"""Which id an agent records under: the game's own, found by any of its names; or a new one where the tables are ours.

``trajectories`` refers to ``"User"``, so a row of an agent that the game does not know is refused. Names are mapped
before the first row is recorded, so that the fault is told at once and not when the first hour is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.migrate import owns_game_tables

_KNOWN = """
SELECT named.name, "User"."id" FROM unnest($1::text[]) AS named(name)
JOIN "User" ON named.name IN ("User"."id", "User"."username", "User"."displayName")
"""


async def agent_ids(database: Database, names: Sequence[str]) -> dict[str, str]:
    """By name, the id to record under: of the user with this id, username or display name.

    In tables that Hindsight created, a new name is its own id, and the recorder adds it. In a game's tables agents are
    the game's to create: ConfigurationError for a name that it does not know, or that several of its users have.
    """
    async with database.pool.acquire() as connection:
        is_ours = await owns_game_tables(connection)
        rows = await connection.fetch(_KNOWN, list(names))
    found: dict[str, set[str]] = {name: set() for name in names}
    for row in rows:
        found[row["name"]].add(row["id"])
    chosen = {name: name if name in ids else min(ids) for name, ids in found.items() if name in ids or len(ids) == 1}
    unknown = [name for name, ids in found.items() if not ids]
    several = [name for name, ids in found.items() if ids and name not in chosen]
    if several:
        raise ConfigurationError(f"Several of the game's users are called {several[0]!r}: name its id instead.")
    if unknown and not is_ours:
        raise ConfigurationError(
            f"The game has no user {unknown[0]!r}: create the agent in the game, or name one of its users by id, "
            "username or display name."
        )
    return chosen | {name: name for name in unknown}
