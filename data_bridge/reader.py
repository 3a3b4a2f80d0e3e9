"""Reads windows from the game's Postgres: discover what there is, then stream it in order.

Discovery finds windows without reading them. The game's table may hold millions of rows and we must not add an index to
it. Its index on ("windowId", "agentId") serves both purposes: skipping from one window id to the next, and walking
within a window from agent to agent until there are enough. That costs one or two index look-ups per window, however
many rows there are. Ids in other spellings name the same window. Rows whose id is NULL or names no hour ("strays")
belong to the hour they started in; they are found through the agents that have such rows, by ("agentId", "startTime").

One batch of windows is decoded while Postgres prepares and sends the next; the size of the last batches in bytes
decides the size of the next one, so that memory use stays flat. When Postgres goes away, the current batch is retried
until it is back: every window arrives once. Nothing is written, and only SELECT on the game's tables is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, TypeVar

import asyncpg
import msgspec

from data_bridge.database import LOST, Database, Fetch, Reconnecting, fetch_on
from data_bridge.decode import TRAJECTORY_COLUMNS, trajectory_of, unreadable
from data_bridge.models import AgentTrajectory, UnreadableRow, Window
from data_bridge.outcomes import OUTCOME_COLUMNS, outcomes_of
from data_bridge.quality import Reason, Rules
from data_bridge.window_ids import is_closed, normalise, spellings_of, start_of, window_of

logger = logging.getLogger(__name__)

_MAX_HOURS = 24 * 7
"""A row that claims a longer window is wrong; it must not keep its window open forever."""

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
SELECT ids."windowId" AS id, found.agents, found.hours
FROM ids CROSS JOIN LATERAL (
  SELECT array_agg("agentId") AS agents, array_agg("windowHours") AS hours FROM (
    SELECT DISTINCT ON ("agentId") "agentId", "windowHours" FROM trajectories
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
SELECT NULL, array_agg("agentId"), NULL FROM agents WHERE "agentId" IS NOT NULL
"""

_STRAY_AGENTS = """
SELECT date_trunc('hour', "startTime") AS hour, "agentId" AS agent, max("windowHours") AS hours
FROM trajectories
WHERE {which} AND "startTime" >= $2 AND "startTime" < $3 AND date_trunc('hour', "startTime") = ANY($4) {eligible}
GROUP BY 1, 2
"""

_BATCH_BYTES = 4_000_000
_FIRST_BATCH, _MAX_BATCH = 4, 200  # windows
_BYTES_AT_A_TIME = 100_000
"""JSON decoded before the socket is read again: it holds little more, and Postgres waits while it is full."""

_NAMED = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "windowId" = ANY($2)'
_STRAY_ROWS = f"""
SELECT {TRAJECTORY_COLUMNS} FROM trajectories
WHERE ("windowId" IS NULL OR "windowId" = ANY($2)) AND "agentId" = ANY($3)
  AND "startTime" >= $4 AND "startTime" < $5 AND date_trunc('hour', "startTime") = ANY($6)
"""
_OUTCOMES = f'SELECT {OUTCOME_COLUMNS} FROM market_outcomes WHERE "windowId" = ANY($1) ORDER BY "createdAt", id'
_NAMES = 'SELECT id, COALESCE("displayName", username) AS name FROM "User" WHERE id = ANY($1)'

_IN_ORDER = itemgetter("agentId", "startTime", "trajectoryId")
_NO_NAMES = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError)

T = TypeVar("T")


class WindowRef(msgspec.Struct, frozen=True):
    """A window that exists, and what is needed to fetch all of its rows."""

    window_id: str
    hours: int = 1
    agents: int = 0
    """Agents seen. Discovery stops counting when there are enough: for eligibility, or for the window to exist."""
    spellings: tuple[str, ...] = ()
    """Ids, as stored, that name this window."""
    stray_agents: tuple[str, ...] = ()
    """Agents that may have rows in this hour whose id is NULL or names no hour."""
    bad_ids: tuple[str, ...] = ()
    """The ids that name no hour, for finding those rows."""


class _Sighting(msgspec.Struct):
    agents: set[str] = msgspec.field(default_factory=set)
    hours: list[int] = msgspec.field(default_factory=list)
    spellings: list[str] = msgspec.field(default_factory=list)
    stray_agents: set[str] = msgspec.field(default_factory=set)
    bad_ids: set[str] = msgspec.field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of some windows, not yet decoded."""

    refs: Sequence[WindowRef]
    rows: dict[str, list[asyncpg.Record]]
    outcomes: dict[str, list[asyncpg.Record]]

    @property
    def size(self) -> int:
        return sum(row["size"] for rows in self.rows.values() for row in rows if row["steps"] is not None)


class WindowReader:
    """Reads windows by ``rules``. Several tasks may share it; its only state is a cache of agents' names."""

    def __init__(self, database: Database, rules: Rules, *, reconnect_for: timedelta = timedelta(minutes=2)) -> None:
        self.rules = rules
        self._database = database
        self._reconnect_for = reconnect_for
        self._names: dict[str, str | None] = {}
        self._may_read_names = True

    async def discover(self, *, everything: bool = False) -> list[WindowRef]:
        """The windows that start within the lookback, oldest first.

        Only those that can be eligible: closed, and with ``min_agents`` agents whose rows are training data, not
        evaluation and not used yet. With ``everything``: every window with a row.
        """
        rules = self.rules
        first = rules.now - rules.lookback
        wanted, eligible = (1, "") if everything else (rules.min_agents, _ELIGIBLE)
        found = await self._patiently(lambda fetch: _sightings(fetch, first, rules.now, wanted, eligible))
        refs = [
            _ref(window_id, seen)
            for window_id, seen in sorted(found.items())
            if first <= start_of(window_id) <= rules.now
        ]
        return [ref for ref in refs if everything or _is_eligible(ref, rules)]

    async def read(self, window_id: str) -> Window | None:
        """One window by its id in any spelling, eligible or not; None if it has no row."""
        canonical = normalise(window_id)
        if canonical is None:
            return None
        start = start_of(canonical)
        found = await self._patiently(lambda fetch: _sightings(fetch, start, start, 1, ""))
        if canonical not in found:
            return None
        ref = _ref(canonical, found[canonical])
        return await self._window(await self._patiently(lambda fetch: self._fetch(fetch, [ref])), ref)

    async def stream(self, refs: Iterable[WindowRef]) -> AsyncGenerator[Window, None]:
        """Every window of ``refs``, once, in that order. Leaving early (``aclosing``) stops the prefetch."""
        waiting = deque(refs)
        ahead = self._start_fetching(waiting, _FIRST_BATCH)
        try:
            while ahead is not None:
                batch = await ahead
                ahead = self._start_fetching(waiting, _windows_per_batch(batch))
                for ref in batch.refs:
                    yield await self._window(batch, ref)
                    await asyncio.sleep(0)  # lets the next batch arrive while this one is decoded
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    def _start_fetching(self, waiting: deque[WindowRef], number: int) -> asyncio.Task[_Batch] | None:
        refs = [waiting.popleft() for _ in range(min(number, len(waiting)))]
        if not refs:
            return None
        reading = self._patiently(lambda fetch: self._fetch(fetch, refs))
        return asyncio.create_task(reading, name=f"read {refs[0].window_id}")

    async def _window(self, batch: _Batch, ref: WindowRef) -> Window:
        trajectories: list[AgentTrajectory] = []
        broken: list[UnreadableRow] = []
        rows = batch.rows.pop(ref.window_id, [])
        decoded = 0
        for row in sorted(rows, key=_IN_ORDER):
            raw_id = row["windowId"]
            if raw_id is not None and normalise(raw_id) is None:
                broken.append(unreadable(row, ref.window_id, Reason.BAD_WINDOW_ID, f"windowId {raw_id!r}"))
                continue
            read = trajectory_of(row, ref.window_id, self._names.get(row["agentId"]))
            if isinstance(read, AgentTrajectory):
                trajectories.append(read)
            else:
                broken.append(read)
            decoded += row["size"]
            if decoded > _BYTES_AT_A_TIME:
                decoded = 0
                await asyncio.sleep(0)
        outcomes = outcomes_of(batch.outcomes.get(ref.window_id, ()))
        hours = _hours_of(row["windowHours"] for row in rows) if rows else ref.hours
        return Window(ref.window_id, hours, tuple(trajectories), outcomes, tuple(broken))

    async def _patiently(self, read: Callable[[Fetch], Awaitable[T]]) -> T:
        """The result of ``read`` on one connection; on a new connection if that one is lost."""
        patience = Reconnecting(self._database, self._reconnect_for)
        while True:
            try:
                async with self._database.pool.acquire() as connection:
                    return await read(fetch_on(connection))
            except LOST as error:
                await patience.after(error)

    async def _fetch(self, fetch: Fetch, refs: Sequence[WindowRef]) -> _Batch:
        spellings = {raw: ref.window_id for ref in refs for raw in (*spellings_of(ref.window_id), *ref.spellings)}
        rows: dict[str, list[asyncpg.Record]] = defaultdict(list)
        for row in await fetch(_NAMED, self.rules.max_bytes, list(spellings)):
            rows[spellings[row["windowId"]]].append(row)
        for row in await self._strays(fetch, refs):
            rows[window_of(row["startTime"])].append(row)
        outcomes: dict[str, list[asyncpg.Record]] = defaultdict(list)
        for row in await fetch(_OUTCOMES, list(spellings)):
            outcomes[spellings[row["windowId"]]].append(row)
        await self._learn_names(fetch, {row["agentId"] for group in rows.values() for row in group})
        return _Batch(refs, rows, outcomes)

    async def _strays(self, fetch: Fetch, refs: Sequence[WindowRef]) -> list[asyncpg.Record]:
        """Rows in the hours of ``refs`` whose id is NULL or names no hour."""
        hours = [start_of(ref.window_id).replace(tzinfo=None) for ref in refs if ref.stray_agents]
        if not hours:
            return []
        agents = sorted({agent for ref in refs for agent in ref.stray_agents})
        bad_ids = sorted({raw for ref in refs for raw in ref.bad_ids})
        end = max(hours) + timedelta(hours=1)
        return await fetch(_STRAY_ROWS, self.rules.max_bytes, bad_ids, agents, min(hours), end, hours)

    async def _learn_names(self, fetch: Fetch, agents: set[str]) -> None:
        unknown = agents - self._names.keys()
        if not unknown or not self._may_read_names:
            return
        try:
            rows = await fetch(_NAMES, sorted(unknown))
        except _NO_NAMES as error:
            logger.info("agents' names cannot be read, so ids are shown: %s", error)
            self._may_read_names = False
            return
        self._names |= dict.fromkeys(unknown) | {row["id"]: row["name"] for row in rows}


def _windows_per_batch(last: _Batch) -> int:
    """The number of windows to fetch next, estimated from the size of the last batch."""
    fitting = _BATCH_BYTES * len(last.refs) // max(last.size, 1)
    return max(1, min(fitting, 4 * len(last.refs), _MAX_BATCH))


async def _sightings(fetch: Fetch, first: datetime, last: datetime, wanted: int, eligible: str) -> dict[str, _Sighting]:
    """What is found of each window on the days from ``first`` to ``last``.

    Days bound the search because a day's name sorts before all of its hours in every spelling and collation.
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
    found: dict[str, _Sighting],
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
    hours = _hours(first, last)
    if nameless:
        unsure = [hour for hour in hours if (seen := found.get(window_of(hour))) is None or len(seen.agents) < wanted]
        for row in await _stray_agents(fetch, '"windowId" IS NULL AND "agentId" = ANY($1)', nameless, unsure, eligible):
            seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), _Sighting())
            seen.agents.add(row["agent"])
            seen.hours.append(row["hours"])
    for row in await _stray_agents(fetch, '"windowId" = ANY($1)', bad, hours, eligible):
        seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), _Sighting())
        seen.stray_agents.add(row["agent"])
        seen.bad_ids.update(bad)
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


def _is_eligible(ref: WindowRef, rules: Rules) -> bool:
    return ref.agents >= rules.min_agents and is_closed(ref.window_id, ref.hours, rules.now)


def _ref(window_id: str, seen: _Sighting) -> WindowRef:
    return WindowRef(
        window_id,
        hours=_hours_of(seen.hours),
        agents=len(seen.agents),
        spellings=tuple(seen.spellings),
        stray_agents=tuple(sorted(seen.stray_agents)),
        bad_ids=tuple(sorted(seen.bad_ids)),
    )


def _hours_of(claims: Iterable[int | None]) -> int:
    """The length of a window in hours: the most common claim of its rows, so that one wrong row changes nothing."""
    sane = [hours for hours in claims if hours is not None and 1 <= hours <= _MAX_HOURS]
    return max(set(sane), key=lambda hours: (sane.count(hours), hours), default=1)


async def read_pnl(database: Database, trajectory_ids: Sequence[str], max_bytes: int) -> dict[str, float]:
    """P&L of trajectories in their windows; without those whose row is gone, is too large, or does not tell it."""
    query = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "trajectoryId" = ANY($2)'
    rows = await database.pool.fetch(query, max_bytes, trajectory_ids)
    read = (trajectory_of(row, row["windowId"] or "", None) for row in rows)
    told = ((one.trajectory_id, one.window_pnl) for one in read if isinstance(one, AgentTrajectory))
    return {trajectory_id: pnl for trajectory_id, pnl in told if pnl is not None}
