"""Reads windows from the game's Postgres, in order: ``discovery`` finds them, this fetches and decodes their rows.

Rows are measured before their JSON is fetched. Postgres numbers the rows of each agent and sends their sizes, which it
knows without reading them; an agent has a limited number of rows in a window and a share of its bytes, so that a flood
costs the agent that writes it. What is not fetched has a reason like any other row that is not used. The sizes also
decide how many windows make a batch, so that memory use stays flat; one batch is decoded while Postgres prepares and
sends the next.

When Postgres goes away, the current batch is retried until it is back: every window arrives once. Nothing is written,
and only SELECT on the game's tables is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import asyncpg
import msgspec

from data_bridge.database import LOST, Database, Fetch, Reconnecting, fetch_on
from data_bridge.decode import TRAJECTORY_COLUMNS, trajectory_of
from data_bridge.discovery import WindowRef, is_eligible, ref_of, sightings
from data_bridge.errors import ConfigurationError
from data_bridge.facts import FACT_COLUMNS, closing_of, facts_of, facts_query, names_in
from data_bridge.models import AgentTrajectory, Window
from data_bridge.outcomes import OUTCOME_COLUMNS, outcomes_of
from data_bridge.quality import Rules, hours_of
from data_bridge.shares import BATCH_BYTES, MAX_ID, MAX_LISTED, MAX_ROWS, Shares, share_at_once, share_in_parts
from data_bridge.window_ids import normalise, spellings_of, start_of

logger = logging.getLogger(__name__)

_COLUMNS = """
  "windowId", "agentId", "trajectoryId", "createdAt", octet_length("stepsJson") + octet_length("metadataJson") AS size
"""
_NAMED = f"""
SELECT at."window", false AS bad, {_COLUMNS} FROM unnest($2::text[], $3::text[]) AS at(raw, "window")
JOIN trajectories ON "windowId" = at.raw
"""
_STRAYS = f"""
UNION ALL
SELECT to_char("startTime", 'YYYY-MM-DD"T"HH24":00"'), "windowId" IS NOT NULL, {_COLUMNS} FROM trajectories
WHERE ("windowId" IS NULL OR "windowId" = ANY($4)) AND "agentId" = ANY($5)
  AND "startTime" >= $6 AND "startTime" < $7 AND date_trunc('hour', "startTime") = ANY($8)
"""
_SHORT = "CASE WHEN octet_length({0}) <= {1} THEN {0} ELSE left({0}, 100) || '... ' || md5({0}) END AS {0}"
_MEASURE = f"""
SELECT * FROM (
  SELECT "window", bad, "windowId", size,
    {_SHORT.format('"agentId"', MAX_ID)}, {_SHORT.format('"trajectoryId"', MAX_ID)},
    greatest(octet_length("trajectoryId"), octet_length("agentId")) > {MAX_ID} AS "isLong",
    row_number() OVER (of_agent ORDER BY "createdAt", "trajectoryId") AS place,
    count(*) OVER of_agent AS number
  FROM (%s) AS rows WINDOW of_agent AS (PARTITION BY "window", bad, "agentId")
) AS placed WHERE place <= $1 ORDER BY "agentId", place
"""

_MEASURED_AT_ONCE = 50  # windows
_BYTES_AT_A_TIME = 100_000
"""JSON decoded before the socket is read again: it holds little more, and Postgres waits while it is full."""

_ROWS = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "trajectoryId" = ANY($2)'
_OUTCOMES = f'SELECT {OUTCOME_COLUMNS} FROM market_outcomes WHERE "windowId" = ANY($1) ORDER BY "createdAt", id'
_AGENTS = """
SELECT name FROM unnest($1::text[]) AS name WHERE EXISTS (SELECT 1 FROM trajectories WHERE "agentId" = name)
"""
_WRITERS = "SELECT agent_id FROM hindsight.agent_roles"
_NAMES = 'SELECT id, COALESCE("displayName", username) AS name FROM "User" WHERE id = ANY($1)'

_IN_ORDER = itemgetter("agentId", "startTime", "trajectoryId")
_NO_FACTS = (asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError, asyncpg.DataError)
_NO_NAMES = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Batch:
    """The rows of some windows, not yet decoded."""

    windows: Sequence[tuple[WindowRef, Shares]]
    rows: dict[str, list[asyncpg.Record]]
    outcomes: dict[str, list[asyncpg.Record]]
    facts: dict[str, list[dict[str, Any]]]
    agents: frozenset[str]
    """Those that facts are about."""


class WindowReader:
    """Reads windows by ``rules``. Several tasks may share it; its only state is a cache of agents' names."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self.rules = rules
        self._database = database
        self._names: dict[str, str | None] = {}
        self._may_read_names = True
        self._own_writers: frozenset[str] | None = None
        """Agents that write to Postgres with a role of their own; None: not looked up yet."""

    async def discover(self, *, everything: bool = False) -> list[WindowRef]:
        """The windows that start within the lookback, oldest first.

        Only those that can be eligible: over after an hour, and with ``min_agents`` agents whose rows are training
        data, not evaluation and not used yet. With ``everything``: every window with a row.
        """
        rules = self.rules
        first = rules.now - rules.lookback
        agents = 0 if everything else rules.min_agents
        look = partial(sightings, first=first, last=rules.now, eligible_agents=agents)
        found = await self._patiently("the list of windows", look)
        refs = [
            ref_of(window_id, seen)
            for window_id, seen in sorted(found.items())
            if first <= start_of(window_id) <= rules.now
        ]
        return [ref for ref in refs if everything or is_eligible(ref, rules)]

    async def read(self, window_id: str) -> Window | None:
        """One window by its id in any spelling, eligible or not; None if it has no row."""
        canonical = normalise(window_id)
        if canonical is None:
            return None
        start = start_of(canonical)
        found = await self._patiently(f"window {canonical}", lambda fetch: sightings(fetch, start, start))
        if canonical not in found:
            return None
        ref = ref_of(canonical, found[canonical])
        batch = await self._next_batch(deque([ref]), deque())
        return await self._window(batch, *batch.windows[0]) if batch is not None else None

    async def read_rows(self, ref: WindowRef, trajectory_ids: Sequence[str], hours: int) -> Window:
        """Some rows of a window that was surveyed before, which took ``hours``: by all of its rows, not by these."""
        windows = [(ref, Shares(tuple(trajectory_ids), (), 0))]
        batch = await self._patiently(f"window {ref.window_id}", lambda fetch: self._fetch(fetch, windows))
        return msgspec.structs.replace(await self._window(batch, *windows[0]), hours=hours)

    async def stream(self, refs: Iterable[WindowRef]) -> AsyncGenerator[Window, None]:
        """Every window of ``refs``, once, in that order. Leaving early (``aclosing``) stops the prefetch."""
        waiting, measured = deque(refs), deque[tuple[WindowRef, Shares]]()
        async with aclosing(self._stream(waiting, measured)) as windows:
            async for window, _ in windows:
                yield window

    async def stream_parts(self, refs: Iterable[WindowRef]) -> AsyncGenerator[tuple[Window, bool], None]:
        """As ``stream``, but a large window comes in parts, each with all rows of its agents; True with its last part.

        So a window of any size is read in the memory of one part, and an agent's share of it does not shrink below
        ``FAIR_SHARE`` with the number of the others. The hours of a part are by its own rows.
        """
        waiting, measured = deque(refs), deque[tuple[WindowRef, Shares]]()
        async with aclosing(self._stream(waiting, measured, in_parts=True)) as parts:
            async for part in parts:
                yield part

    async def _stream(
        self, waiting: deque[WindowRef], measured: deque[tuple[WindowRef, Shares]], *, in_parts: bool = False
    ) -> AsyncGenerator[tuple[Window, bool], None]:
        def fetching() -> asyncio.Task[_Batch | None]:
            next_batch = self._next_batch(waiting, measured, in_parts=in_parts)
            return asyncio.create_task(next_batch, name="read the next windows")

        ahead = fetching()
        try:
            while (batch := await ahead) is not None:
                ahead = fetching()
                for ref, shares in batch.windows:
                    yield await self._window(batch, ref, shares), shares.is_last
                    await asyncio.sleep(0)  # lets the next batch arrive while this one is decoded
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _next_batch(
        self, waiting: deque[WindowRef], measured: deque[tuple[WindowRef, Shares]], *, in_parts: bool = False
    ) -> _Batch | None:
        """As many of the next windows as fit into a batch, at least one; None if there are no more."""
        if not measured:
            refs = [waiting.popleft() for _ in range(min(_MEASURED_AT_ONCE, len(waiting)))]
            if not refs:
                return None
            measure = partial(self._measure, refs=refs, in_parts=in_parts)
            measured.extend(await self._patiently(f"window {refs[0].window_id}", measure))
        windows, size = [measured.popleft()], 0
        while measured and (size := size + windows[-1][1].size) + measured[0][1].size <= BATCH_BYTES:
            windows.append(measured.popleft())
        name = f"window {windows[0][0].window_id}"
        return await self._patiently(name, lambda fetch: self._fetch(fetch, windows))

    async def _window(self, batch: _Batch, ref: WindowRef, shares: Shares) -> Window:
        window_id = ref.window_id
        trajectories: list[AgentTrajectory] = []
        broken = list(shares.left_out)
        rows = sorted(batch.rows.pop(window_id, []), key=_IN_ORDER, reverse=True)
        decoded = 0
        while rows:  # from the end, so that no row's text is kept longer than needed
            row = rows.pop()
            read = trajectory_of(row, window_id, self._names.get(row["agentId"]), self.rules.world)
            if isinstance(read, AgentTrajectory):
                trajectories.append(self._with_writer(read))
            else:
                broken.append(read)
            decoded += row["size"]
            if decoded > _BYTES_AT_A_TIME:
                decoded = 0
                await asyncio.sleep(0)
        hours = hours_of(trajectories)
        outcomes = outcomes_of(batch.outcomes.get(window_id, ()))
        if self.rules.world.reads_facts:
            facts, doubts = facts_of(batch.facts.get(window_id, ()), closing_of(window_id, hours), batch.agents)
            outcomes = msgspec.structs.replace(outcomes, facts=facts, doubts=doubts)
        return Window(window_id, hours, tuple(trajectories), outcomes, tuple(broken))

    def _with_writer(self, read: AgentTrajectory) -> AgentTrajectory:
        """``read``, as sent by the agent if it has a role of its own in the database."""
        return msgspec.structs.replace(read, is_sent=True) if read.agent_id in (self._own_writers or ()) else read

    async def _patiently(self, what: str, read: Callable[[Fetch], Awaitable[T]]) -> T:
        """The result of ``read`` on one connection; on a new connection if that one is lost."""
        patience = Reconnecting(self._database, what)
        while True:
            try:
                async with self._database.pool.acquire() as connection:
                    return await read(fetch_on(connection))
            except LOST as error:
                await patience.after(error)

    async def _measure(
        self, fetch: Fetch, refs: Sequence[WindowRef], *, in_parts: bool
    ) -> list[tuple[WindowRef, Shares]]:
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
        share = share_in_parts if in_parts else share_at_once
        return [(ref, part) for ref in refs for part in share(ref.window_id, rows[ref.window_id], self.rules.max_bytes)]

    async def _fetch(self, fetch: Fetch, windows: Sequence[tuple[WindowRef, Shares]]) -> _Batch:
        places = {wanted: ref.window_id for ref, shares in windows for wanted in shares.wanted}
        rows: dict[str, list[asyncpg.Record]] = defaultdict(list)
        for row in await fetch(_ROWS, self.rules.max_bytes, list(places)):
            rows[places[row["trajectoryId"]]].append(row)
        spellings = _spellings(ref for ref, _ in windows)
        outcomes: dict[str, list[asyncpg.Record]] = defaultdict(list)
        if self.rules.world.reads_markets:
            for row in await fetch(_OUTCOMES, list(spellings)):
                outcomes[spellings[row["windowId"]]].append(row)
        facts = await self._fetch_facts(fetch, spellings) if self.rules.world.reads_facts else {}
        names = {name for told in facts.values() for fact in told for name in names_in(fact.get("subject"))}
        agents = frozenset(row["name"] for row in await fetch(_AGENTS, sorted(names))) if names else frozenset[str]()
        if self.rules.world.written_by == "game" and self._own_writers is None:
            self._own_writers = await _own_writers(fetch)
        await self._learn_names(fetch, {row["agentId"] for group in rows.values() for row in group})
        return _Batch(windows, rows, outcomes, facts, agents)

    async def _fetch_facts(self, fetch: Fetch, spellings: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
        """By window, the facts as written. Without our table there are none; a view that cannot be read is an error."""
        view, found = self.rules.facts_view, defaultdict[str, list[dict[str, Any]]](list)
        try:
            rows = await fetch(facts_query(view), list(spellings))
        except (*_NO_NAMES, *_NO_FACTS) as error:
            if view is None and isinstance(error, asyncpg.InsufficientPrivilegeError):
                raise
            if view is not None:
                raise ConfigurationError(
                    f"--facts-view {view} cannot be read: {error}; it needs window_id, subject and kind, as text."
                ) from error
            logger.info("there are no facts: %s", error)
            return found
        for row in rows:
            fact = msgspec.json.decode(row["fact"])
            if missing := [name for name in FACT_COLUMNS[:3] if name not in fact]:
                raise ConfigurationError(f"--facts-view {view} has no column {' or '.join(missing)}.")
            found[spellings[row["window_id"]]].append(fact)
        return found

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


async def _own_writers(fetch: Fetch) -> frozenset[str]:
    """The agents that ``row_level_security.sql`` gave a role of their own; none where it was never run."""
    try:
        return frozenset(row["agent_id"] for row in await fetch(_WRITERS))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return frozenset()


def _spellings(refs: Iterable[WindowRef]) -> dict[str, str]:
    """Every spelling under which rows of ``refs`` are stored, with the window's canonical id."""
    return {raw: ref.window_id for ref in refs for raw in (*spellings_of(ref.window_id), *ref.spellings)}


def measuring(*, strays: bool) -> str:
    """The query for the first $1 rows of each agent in some windows, without their JSON.

    $2 are the windows' ids as stored, $3 the canonical id of each. With ``strays``, also rows whose id is NULL or one
    of $4, of the agents $5, that started from $6 to $7 in one of the hours $8.
    """
    return _MEASURE % (_NAMED + _STRAYS if strays else _NAMED)


async def read_pnl(database: Database, trajectory_ids: Sequence[str], max_bytes: int) -> dict[str, float]:
    """P&L of trajectories in their windows; without those whose row is gone, is too large, or does not tell it."""
    query = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "trajectoryId" = ANY($2)'
    rows = await database.pool.fetch(query, max_bytes, trajectory_ids)
    read = (trajectory_of(row, row["windowId"] or "", None) for row in rows)
    told = ((one.trajectory_id, one.window_pnl) for one in read if isinstance(one, AgentTrajectory))
    return {trajectory_id: pnl for trajectory_id, pnl in told if pnl is not None}
