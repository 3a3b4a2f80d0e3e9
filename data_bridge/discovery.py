"""Which windows there are, found without reading them.

The game's table may hold millions of rows and we may not add an index to it. Its index on ("windowId", "agentId")
answers both questions: skipping from one window id to the next, and walking within a window from agent to agent until
there are enough. That costs one or two index look-ups a window, however many rows there are.

Ids in other spellings name the same window. Rows whose id is NULL or names no hour ("strays") belong to the hour
they started in; they are found through the agents that have such rows, by ("agentId", "startTime").
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from data_bridge.patience import Fetch
from data_bridge.quality import Rules
from data_bridge.window_ids import is_closed, is_held_out, normalise, start_of, window_of

LONGEST_HOURS = 24 * 7
"""A row that claims a longer window is wrong; it must not keep its window open for ever."""

_MOST_BAD_IDS = 200  # different ids that name no hour; more of them are not looked at

_ELIGIBLE = 'AND "isTrainingData" AND NOT "isEvaluation" AND NOT "usedInTraining"'

_AGENTS_OF_WINDOWS = """
WITH RECURSIVE ids AS (
  (SELECT "windowId" FROM trajectories WHERE {within} ORDER BY "windowId" LIMIT 1)
  UNION ALL
  SELECT (SELECT "windowId" FROM trajectories
          WHERE "windowId" > ids."windowId" AND {within} ORDER BY "windowId" LIMIT 1)
  FROM ids WHERE ids."windowId" IS NOT NULL
)
SELECT ids."windowId" AS id, found.agents, found.hours
FROM ids CROSS JOIN LATERAL (
  SELECT array_agg("agentId") AS agents, array_agg("windowHours") AS hours FROM (
    SELECT DISTINCT ON ("agentId") "agentId", "windowHours" FROM trajectories
    WHERE "windowId" = ids."windowId" {eligible} ORDER BY "agentId" LIMIT {wanted}
  ) AS some_agents
) AS found
WHERE ids."windowId" IS NOT NULL AND found.agents IS NOT NULL
LIMIT {most}
"""

_RANGES = (
    ('"windowId" >= $1 AND "windowId" < $2', "ALL"),
    # Ids that name no hour sort before every year or after today, as do windows of the future: of these only some.
    ("\"windowId\" < '1970'", _MOST_BAD_IDS),
    ('"windowId" >= $2', _MOST_BAD_IDS),
)

_AGENTS_WITHOUT_ID = """
WITH RECURSIVE agents AS (
  (SELECT "agentId" FROM trajectories WHERE "windowId" IS NULL ORDER BY "windowId", "agentId" LIMIT 1)
  UNION ALL
  SELECT (SELECT "agentId" FROM trajectories
          WHERE "windowId" IS NULL AND "agentId" > agents."agentId" ORDER BY "windowId", "agentId" LIMIT 1)
  FROM agents WHERE agents."agentId" IS NOT NULL
)
SELECT NULL, array_agg("agentId"), NULL FROM agents WHERE "agentId" IS NOT NULL
"""

_STRAYS = """
SELECT date_trunc('hour', "startTime") AS hour, "agentId" AS agent, max("windowHours") AS hours
FROM trajectories
WHERE {which} AND "startTime" >= $2 AND "startTime" < $3 AND date_trunc('hour', "startTime") = ANY($4) {eligible}
GROUP BY 1, 2
"""


class WindowRef(msgspec.Struct, frozen=True):
    """A window that exists, and what is needed to fetch all of its rows."""

    window_id: str
    hours: int = 1
    agents: int = 0
    """Agents seen. Discovery stops counting when there are enough: for eligibility, or for the window to exist."""
    spellings: tuple[str, ...] = ()
    """Ids, as stored, that name this window."""
    stray_agents: tuple[str, ...] = ()
    """Agents that may have rows of this hour whose id is NULL or names no hour."""
    bad_ids: tuple[str, ...] = ()
    """The ids that name no hour, for finding those rows."""


class _Sighting(msgspec.Struct):
    agents: set[str] = msgspec.field(default_factory=set)
    hours: list[int] = msgspec.field(default_factory=list)
    spellings: list[str] = msgspec.field(default_factory=list)
    stray_agents: set[str] = msgspec.field(default_factory=set)
    bad_ids: set[str] = msgspec.field(default_factory=set)


async def discover(fetch: Fetch, rules: Rules, *, everything: bool = False) -> list[WindowRef]:
    """The windows that start within ``rules.lookback``, oldest first.

    Only those that can be eligible: closed, on the right side of the held-out split, and with ``min_agents`` agents
    whose rows are training data, not evaluation and not used yet. ``everything`` gives every window with a row.
    """
    first = rules.now - rules.lookback
    wanted, eligible = (1, "") if everything else (rules.min_agents, _ELIGIBLE)
    sightings = await _sightings(fetch, first, rules.now, wanted, eligible)
    refs = []
    for window_id, seen in sorted(sightings.items()):
        if not first <= start_of(window_id) <= rules.now:
            continue
        ref = _ref(window_id, seen)
        if everything or _is_eligible(ref, rules):
            refs.append(ref)
    return refs


async def find(fetch: Fetch, window_id: str) -> WindowRef | None:
    """The one window, eligible or not; None if it has no row."""
    start = start_of(window_id)
    sightings = await _sightings(fetch, start, start, 1, "")
    seen = sightings.get(window_id)
    return None if seen is None else _ref(window_id, seen)


def hours_of(claims: Iterable[int | None]) -> int:
    """The hours of a window from what its rows claim: what most of them say, so that one wrong row changes nothing."""
    sane = [hours for hours in claims if hours is not None and 1 <= hours <= LONGEST_HOURS]
    return max(set(sane), key=lambda hours: (sane.count(hours), hours), default=1)


def _is_eligible(ref: WindowRef, rules: Rules) -> bool:
    held_out = is_held_out(ref.window_id, rules.held_out_share)
    return (
        ref.agents >= rules.min_agents
        and is_closed(ref.window_id, ref.hours, rules.now)
        and held_out == (rules.purpose == "evaluation")
    )


def _ref(window_id: str, seen: _Sighting) -> WindowRef:
    return WindowRef(
        window_id,
        hours=hours_of(seen.hours),
        agents=len(seen.agents),
        spellings=tuple(seen.spellings),
        stray_agents=tuple(sorted(seen.stray_agents)),
        bad_ids=tuple(sorted(seen.bad_ids)),
    )


async def _sightings(fetch: Fetch, first: datetime, last: datetime, wanted: int, eligible: str) -> dict[str, _Sighting]:
    """What is seen of the windows of the days from ``first`` to ``last``.

    The days bound the search because a day's name sorts before all of its hours in every spelling and collation.
    """
    found: dict[str, _Sighting] = {}
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
        seen = found.setdefault(window_id, _Sighting())
        seen.agents.update(row["agents"])
        seen.hours.extend(row["hours"])
        seen.spellings.append(row["id"])
    await _add_strays(fetch, found, nameless, bad, first, last, wanted, eligible)
    return found


def _agents_of_windows(wanted: int, eligible: str) -> str:
    """The query for the agents of each id between $1 and $2 and of ids out of place, and last of those without id.

    All in one, since a round trip takes as long as some ten windows.
    """
    # ``wanted`` is no parameter: only so does the planner know that it is small and walks the index in order.
    queries = [
        _AGENTS_OF_WINDOWS.format(within=within, most=most, eligible=eligible, wanted=int(wanted))
        for within, most in _RANGES
    ]
    return " UNION ALL ".join(f"({query})" for query in (*queries, _AGENTS_WITHOUT_ID))


async def _add_strays(
    fetch: Fetch,
    found: dict[str, _Sighting],
    nameless: list[str],
    bad: list[str],
    first: datetime,
    last: datetime,
    wanted: int,
    eligible: str,
) -> None:
    """See the rows whose id is NULL, in the hours that lack agents without them, and those whose id is bad."""
    if not nameless and not bad:
        return
    hours = _hours(first, last)
    if nameless:
        unsure = [hour for hour in hours if (seen := found.get(window_of(hour))) is None or len(seen.agents) < wanted]
        for row in await _strays(fetch, '"windowId" IS NULL AND "agentId" = ANY($1)', nameless, unsure, eligible):
            seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), _Sighting())
            seen.agents.add(row["agent"])
            seen.hours.append(row["hours"])
    for row in await _strays(fetch, '"windowId" = ANY($1)', bad, hours, eligible):
        seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), _Sighting())
        seen.stray_agents.add(row["agent"])
        seen.bad_ids.update(bad)
    for seen in found.values():
        seen.stray_agents.update(nameless)


async def _strays(fetch: Fetch, which: str, names: list[str], hours: list[datetime], eligible: str) -> list[Any]:
    if not names or not hours:
        return []
    naive = [hour.replace(tzinfo=None) for hour in hours]
    query = _STRAYS.format(which=which, eligible=eligible)
    return await fetch(query, names, naive[0], naive[-1] + timedelta(hours=1), naive)


def _hours(first: datetime, last: datetime) -> list[datetime]:
    """The starts of the hours from that of ``first`` to that of ``last``."""
    hour = first.replace(minute=0, second=0, microsecond=0)
    number = int((last - hour) / timedelta(hours=1)) + 1
    return [hour + timedelta(hours=offset) for offset in range(number)]
