"""Reads windows from the game's Postgres: discover what there is, then stream it in order.

Discovery finds windows without reading them. The game's table may hold millions of rows and we must not add an index to
it. Its index on ("windowId", "agentId") serves both purposes: skipping from one window id to the next, and walking
within a window from agent to agent until there are enough. That costs one or two index look-ups per window, however
many rows there are. Ids in other spellings name the same window. Rows whose id is NULL or names no hour ("strays")
belong to the hour they started in; they are found through the agents that have such rows, by ("agentId", "startTime").

Rows are measured before their JSON is fetched: an agent has a limited number of rows in a window and a share of its
bytes, so that a flood costs the agent that writes it. The sizes also decide how many windows make a batch, so that
memory use stays flat; one batch is decoded while Postgres prepares and sends the next. When Postgres goes away, the
current batch is retried until it is back: every window arrives once. Nothing is written, and only SELECT on the game's
tables is needed.
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
from data_bridge.decode import TRAJECTORY_COLUMNS, trajectory_of
from data_bridge.models import AgentTrajectory, Window
from data_bridge.outcomes import OUTCOME_COLUMNS, outcomes_of
from data_bridge.quality import Rules, hours_of
from data_bridge.shares import MAX_LISTED, MAX_ROWS, Shares, measuring, share_out
from data_bridge.window_ids import is_closed, is_held_out, normalise, spellings_of, start_of, window_of

logger = logging.getLogger(__name__)

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

_MEASURED_AT_ONCE = 50  # windows
_BATCH_BYTES = 4_000_000
_BYTES_AT_A_TIME = 100_000
"""JSON decoded before the socket is read again: it holds little more, and Postgres waits while it is full."""

_ROWS = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "trajectoryId" = ANY($2)'
_OUTCOMES = f'SELECT {OUTCOME_COLUMNS} FROM market_outcomes WHERE "windowId" = ANY($1) ORDER BY "createdAt", id'
_NAMES = 'SELECT id, COALESCE("displayName", username) AS name FROM "User" WHERE id = ANY($1)'

_IN_ORDER = itemgetter("agentId", "startTime", "trajectoryId")
_NO_NAMES = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError)

T = TypeVar("T")


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


class _Sighting(msgspec.Struct):
    agents: set[str] = msgspec.field(default_factory=set)
    spellings: list[str] = msgspec.field(default_factory=list)
    stray_agents: set[str] = msgspec.field(default_factory=set)
    bad_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of some windows, not yet decoded."""

    windows: Sequence[tuple[WindowRef, Shares]]
    rows: dict[str, list[asyncpg.Record]]
    outcomes: dict[str, list[asyncpg.Record]]


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

        Only those that can be eligible: over after an hour, on the right side of the held-out split, and with
        ``min_agents`` agents whose rows are training data, not evaluation and not used yet. With ``everything``: every
        window with a row.
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
        batch = await self._next_batch(deque([ref]), deque())
        return await self._window(batch, *batch.windows[0]) if batch is not None else None

    async def stream(self, refs: Iterable[WindowRef]) -> AsyncGenerator[Window, None]:
        """Every window of ``refs``, once, in that order. Leaving early (``aclosing``) stops the prefetch."""
        waiting, measured = deque(refs), deque[tuple[WindowRef, Shares]]()
        ahead = self._start_fetching(waiting, measured)
        try:
            while (batch := await ahead) is not None:
                ahead = self._start_fetching(waiting, measured)
                for ref, shares in batch.windows:
                    yield await self._window(batch, ref, shares)
                    await asyncio.sleep(0)  # lets the next batch arrive while this one is decoded
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    def _start_fetching(
        self, waiting: deque[WindowRef], measured: deque[tuple[WindowRef, Shares]]
    ) -> asyncio.Task[_Batch | None]:
        return asyncio.create_task(self._next_batch(waiting, measured), name="read the next windows")

    async def _next_batch(self, waiting: deque[WindowRef], measured: deque[tuple[WindowRef, Shares]]) -> _Batch | None:
        """As many of the next windows as fit into a batch, at least one; None if there are no more."""
        if not measured:
            refs = [waiting.popleft() for _ in range(min(_MEASURED_AT_ONCE, len(waiting)))]
            if not refs:
                return None
            measured.extend(await self._patiently(lambda fetch: self._measure(fetch, refs)))
        windows, size = [measured.popleft()], 0
        while measured and (size := size + windows[-1][1].size) + measured[0][1].size <= _BATCH_BYTES:
            windows.append(measured.popleft())
        return await self._patiently(lambda fetch: self._fetch(fetch, windows))

    async def _window(self, batch: _Batch, ref: WindowRef, shares: Shares) -> Window:
        window_id = ref.window_id
        trajectories: list[AgentTrajectory] = []
        broken = list(shares.left_out)
        rows = sorted(batch.rows.pop(window_id, []), key=_IN_ORDER, reverse=True)
        decoded = 0
        while rows:  # from the end, so that no row's text is kept longer than needed
            row = rows.pop()
            read = trajectory_of(row, window_id, self._names.get(row["agentId"]))
            if isinstance(read, AgentTrajectory):
                trajectories.append(read)
            else:
                broken.append(read)
            decoded += row["size"]
            if decoded > _BYTES_AT_A_TIME:
                decoded = 0
                await asyncio.sleep(0)
        outcomes = outcomes_of(batch.outcomes.get(window_id, ()))
        return Window(window_id, hours_of(trajectories), tuple(trajectories), outcomes, tuple(broken))

    async def _patiently(self, read: Callable[[Fetch], Awaitable[T]]) -> T:
        """The result of ``read`` on one connection; on a new connection if that one is lost."""
        patience = Reconnecting(self._database, self._reconnect_for)
        while True:
            try:
                async with self._database.pool.acquire() as connection:
                    return await read(fetch_on(connection))
            except LOST as error:
                await patience.after(error)

    async def _measure(self, fetch: Fetch, refs: Sequence[WindowRef]) -> list[tuple[WindowRef, Shares]]:
        """Which rows of each window to fetch."""
        spellings = _spellings(refs)
        places: list[Any] = [list(spellings), list(spellings.values())]
        hours = [start_of(ref.window_id).replace(tzinfo=None) for ref in refs if ref.stray_agents]
        if hours:
            agents = sorted({agent for ref in refs for agent in ref.stray_agents})
            bad_ids = sorted({raw for ids in {ref.bad_ids for ref in refs} for raw in ids})
            places += [bad_ids, agents, min(hours), max(hours) + timedelta(hours=1), hours]
        rows: dict[str, list[asyncpg.Record]] = defaultdict(list)
        for row in await fetch(measuring(strays=bool(hours)), MAX_ROWS + MAX_LISTED, *places):
            rows[row["window"]].append(row)
        return [(ref, share_out(ref.window_id, rows[ref.window_id], self.rules.max_bytes)) for ref in refs]

    async def _fetch(self, fetch: Fetch, windows: Sequence[tuple[WindowRef, Shares]]) -> _Batch:
        places = {wanted: ref.window_id for ref, shares in windows for wanted in shares.wanted}
        rows: dict[str, list[asyncpg.Record]] = defaultdict(list)
        for row in await fetch(_ROWS, self.rules.max_bytes, list(places)):
            rows[places[row["trajectoryId"]]].append(row)
        spellings = _spellings(ref for ref, _ in windows)
        outcomes: dict[str, list[asyncpg.Record]] = defaultdict(list)
        for row in await fetch(_OUTCOMES, list(spellings)):
            outcomes[spellings[row["windowId"]]].append(row)
        await self._learn_names(fetch, {row["agentId"] for group in rows.values() for row in group})
        return _Batch(windows, rows, outcomes)

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


def _spellings(refs: Iterable[WindowRef]) -> dict[str, str]:
    """Every spelling under which rows of ``refs`` are stored, with the window's canonical id."""
    return {raw: ref.window_id for ref in refs for raw in (*spellings_of(ref.window_id), *ref.spellings)}


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
    hours, bad_ids = _hours(first, last), tuple(sorted(bad))
    if nameless:
        unsure = [hour for hour in hours if (seen := found.get(window_of(hour))) is None or len(seen.agents) < wanted]
        for row in await _stray_agents(fetch, '"windowId" IS NULL AND "agentId" = ANY($1)', nameless, unsure, eligible):
            seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), _Sighting())
            seen.agents.add(row["agent"])
    for row in await _stray_agents(fetch, '"windowId" = ANY($1)', bad, hours, eligible):
        seen = found.setdefault(window_of(row["hour"].replace(tzinfo=UTC)), _Sighting())
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


def _is_eligible(ref: WindowRef, rules: Rules) -> bool:
    """Whether ``check`` may find usable rows in it. How long it is, its agents say once their rows are read."""
    held_out = is_held_out(ref.window_id, rules.held_out_share)
    return (
        ref.agents >= rules.min_agents
        and is_closed(ref.window_id, 1, rules.now)
        and held_out == (rules.purpose == "evaluation")
    )


def _ref(window_id: str, seen: _Sighting) -> WindowRef:
    return WindowRef(
        window_id,
        agents=len(seen.agents),
        spellings=tuple(seen.spellings),
        stray_agents=tuple(sorted(seen.stray_agents)),
        bad_ids=seen.bad_ids,
    )


async def read_pnl(database: Database, trajectory_ids: Sequence[str], max_bytes: int) -> dict[str, float]:
    """P&L of trajectories in their windows; without those whose row is gone, is too large, or does not tell it."""
    query = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "trajectoryId" = ANY($2)'
    rows = await database.pool.fetch(query, max_bytes, trajectory_ids)
    read = (trajectory_of(row, row["windowId"] or "", None) for row in rows)
    told = ((one.trajectory_id, one.window_pnl) for one in read if isinstance(one, AgentTrajectory))
    return {trajectory_id: pnl for trajectory_id, pnl in told if pnl is not None}
