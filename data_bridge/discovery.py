"""Finds the windows of the game's Postgres without reading them.

The game's table may hold millions of rows and we must not add an index to it. Its index on ("windowId", "agentId")
serves both purposes: skipping from one window id to the next, and walking within a window from agent to agent until
there are enough. That costs one or two index look-ups per window, however many rows there are. Ids in other spellings
name the same window. Rows whose id is NULL or names no hour ("strays") belong to the hour they started in; they are
found through the agents that have such rows, by ("agentId", "startTime").

A window that is found may still turn out to be open, or to have too few usable rows: ``quality.check`` decides that.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from data_bridge.database import Fetch
from data_bridge.quality import Rules
from data_bridge.window_ids import is_closed, normalise, window_of

_MAX_BAD_IDS = 200  # distinct ids that name no hour; any more of them are ignored
_ELIGIBLE = 'AND "isTrainingData" AND NOT "isEvaluation" AND NOT "usedInTraining"'

_AGENTS_OF_WINDOWS = """
WITH RECURSIVE ids AS (
  (SELECT "windowId" FROM trajectories WHERE {within} ORDER BY "windowId" LIMIT 1)
  UNION ALL
  SELECT (SELECT "windowId" FROM trajectories
          WHERE "windowId" > ids."windowId" AND {within} ORDER BY "windowId" LIMIT 1)
  FROM ids WHERE ids."windowId" IS NOT NULL
)
SELECT ids."windowId" AS id, found.agents
FROM ids CROSS JOIN LATERAL (
  SELECT array_agg("agentId") AS agents FROM (
    SELECT DISTINCT ON ("agentId") "agentId" FROM trajectories
    WHERE "windowId" = ids."windowId" {eligible} ORDER BY "agentId" LIMIT {wanted}
  ) AS some_agents
) AS found
WHERE ids."windowId" IS NOT NULL AND found.agents IS NOT NULL
LIMIT {limit}
"""

_RANGES = (
    ('"windowId" >= $1 AND "windowId" < $2', "ALL"),
    # Ids that name no hour sort before every year or after today, as do future windows: only a limited number is read.
    ("\"windowId\" < '1970'", _MAX_BAD_IDS),
    ('"windowId" >= $2', _MAX_BAD_IDS),
)

_AGENTS_WITHOUT_ID = """
WITH RECURSIVE agents AS (
  (SELECT "agentId" FROM trajectories WHERE "windowId" IS NULL ORDER BY "windowId", "agentId" LIMIT 1)
  UNION ALL
  SELECT (SELECT "agentId" FROM trajectories
          WHERE "windowId" IS NULL AND "agentId" > agents."agentId" ORDER BY "windowId", "agentId" LIMIT 1)
  FROM agents WHERE agents."agentId" IS NOT NULL
)
SELECT NULL, array_agg("agentId") FROM agents WHERE "agentId" IS NOT NULL
"""

_STRAY_AGENTS = """
SELECT date_trunc('hour', "startTime") AS hour, "agentId" AS agent
FROM trajectories
WHERE {which} AND "startTime" >= $2 AND "startTime" < $3 AND date_trunc('hour', "startTime") = ANY($4) {eligible}
GROUP BY 1, 2
"""


class WindowRef(msgspec.Struct, frozen=True):
    """A window that exists, and what is needed to fetch all of its rows."""

    window_id: str
    agents: int = 0
    """Agents seen. Discovery stops counting when there are enough: for eligibility, or for the window to exist."""
    spellings: tuple[str, ...] = ()
    """Ids, as stored, that name this window."""
    stray_agents: tuple[str, ...] = ()
    """Agents that may have rows in this hour whose id is NULL or names no hour."""
    bad_ids: tuple[str, ...] = ()
    """The ids that name no hour, for finding those rows."""


class Sighting(msgspec.Struct):
    agents: set[str] = msgspec.field(default_factory=set)
    spellings: list[str] = msgspec.field(default_factory=list)
    stray_agents: set[str] = msgspec.field(default_factory=set)
    bad_ids: tuple[str, ...] = ()


async def sightings(fetch: Fetch, first: datetime, last: datetime, *, eligible_agents: int = 0) -> dict[str, Sighting]:
    """What is found of each window on the days from ``first`` to ``last``.

    Only of rows that may be trained on, up to ``eligible_agents`` agents of a window; by default, one of any rows.
    Days bound the search because a day's name sorts before all of its hours in every spelling and collation.
    """
    wanted, eligible = (eligible_agents, _ELIGIBLE) if eligible_agents else (1, "")
    found: dict[str, Sighting] = {}
    bad: list[str] = []
    nameless: list[str] = []
    lower, upper = f"{first:%Y-%m-%d}", f"{last + timedelta(days=1):%Y-%m-%d}"
    for row in await fetch(_agents_of_windows(wanted, eligible), lower, upper):
        if row["id"] is None:
            nameless = row["agents"] or []
            continue
        window_id = normalise(row["id"])
        if window_id is None:
            bad.append(row["id"])
            continue
        seen = found.setdefault(window_id, Sighting())
        seen.agents.update(row["agents"])
        seen.spellings.append(row["id"])
    await _add_strays(fetch, found, nameless, bad, first, last, wanted, eligible)
    return found


def _agents_of_windows(wanted: int, eligible: str) -> str:
    """The query for the agents of each id between $1 and $2, then of ids out of place, then of rows without an id.

    One query, because a round trip takes as long as about ten windows.
    """
    # ``wanted`` is not a parameter: the planner must know that it is small, so that it walks the index in order.
    queries = [
        _AGENTS_OF_WINDOWS.format(within=within, limit=limit, eligible=eligible, wanted=int(wanted))
        for within, limit in _RANGES
    ]
    return " UNION ALL ".join(f"({query})" for query in (*queries, _AGENTS_WITHOUT_ID))


async def _add_strays(
    fetch: Fetch,
    found: dict[str, Sighting],
    nameless: list[str],
    bad: list[str],
    first: datetime,
    last: datetime,
    wanted: int,
    eligible: str,
) -> None:
    """Add the rows whose id is NULL, for hours that otherwise lack agents, and the rows whose id is bad."""
    if not nameless and not bad:
        return
    hours, bad_ids = _hours(first, last), tuple(sorted(bad))
    if nameless:
        unsure = [hour for hour in hours if (seen := found.get(window_of(hour))) is None or len(seen.agents) < wanted]
        for row in await _stray_agents(fetch, '"windowId" IS NULL AND "agentId" = ANY($1)', nameless, unsure, eligible):
            seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), Sighting())
            seen.agents.add(row["agent"])
    for row in await _stray_agents(fetch, '"windowId" = ANY($1)', bad, hours, eligible):
        seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), Sighting())
        seen.stray_agents.add(row["agent"])
        seen.bad_ids = bad_ids
    for seen in found.values():
        seen.stray_agents.update(nameless)


async def _stray_agents(fetch: Fetch, which: str, names: list[str], hours: list[datetime], eligible: str) -> list[Any]:
    if not names or not hours:
        return []
    naive = [hour.replace(tzinfo=None) for hour in hours]
    query = _STRAY_AGENTS.format(which=which, eligible=eligible)
    return await fetch(query, names, naive[0], naive[-1] + timedelta(hours=1), naive)


def _hours(first: datetime, last: datetime) -> list[datetime]:
    """The start of each hour from that of ``first`` to that of ``last``."""
    hour = first.replace(minute=0, second=0, microsecond=0)
    number = int((last - hour) / timedelta(hours=1)) + 1
    return [hour + timedelta(hours=offset) for offset in range(number)]


def is_eligible(ref: WindowRef, rules: Rules) -> bool:
    """Whether ``check`` may find usable rows in it. How long it is, its agents say once their rows are read."""
    return ref.agents >= rules.min_agents and is_closed(ref.window_id, 1, rules.now)


def ref_of(window_id: str, seen: Sighting) -> WindowRef:
    return WindowRef(
        window_id,
        agents=len(seen.agents),
        spellings=tuple(seen.spellings),
        stray_agents=tuple(sorted(seen.stray_agents)),
        bad_ids=seen.bad_ids,
    )
