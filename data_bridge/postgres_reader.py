"""Reads windows from the game's Postgres: discover what there is, then stream it in order.

One batch of windows is decoded while Postgres prepares and sends the next; a batch is sized by the bytes that the last
ones had, so that memory stays flat. When Postgres goes away in the middle, the batch in hand is asked for again until
it is back: every window arrives once. Nothing is written, and nothing but SELECT on the game's tables is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import TypeVar

import asyncpg

from data_bridge import discovery
from data_bridge.database import Database
from data_bridge.discovery import WindowRef, hours_of
from data_bridge.models import AgentTrajectory, UnreadableRow, Window
from data_bridge.patience import Fetch, patiently
from data_bridge.quality import Reason, Rules
from data_bridge.rows import OUTCOME_COLUMNS, TRAJECTORY_COLUMNS, outcomes_of, trajectory_of, unreadable
from data_bridge.window_ids import normalise, spellings_of, start_of, window_of

__all__ = ["WindowReader", "WindowRef"]

logger = logging.getLogger(__name__)

_BATCH_BYTES = 4_000_000
_FIRST_BATCH, _LARGEST_BATCH = 4, 200  # windows
_BYTES_AT_A_TIME = 100_000
"""Of JSON, decoded before the socket is emptied again: it holds little more, and Postgres waits while it is full."""

_NAMED = f'SELECT {TRAJECTORY_COLUMNS} FROM trajectories WHERE "windowId" = ANY($2)'
_STRAYS = f"""
SELECT {TRAJECTORY_COLUMNS} FROM trajectories
WHERE ("windowId" IS NULL OR "windowId" = ANY($2)) AND "agentId" = ANY($3)
  AND "startTime" >= $4 AND "startTime" < $5 AND date_trunc('hour', "startTime") = ANY($6)
"""
_OUTCOMES = f'SELECT {OUTCOME_COLUMNS} FROM market_outcomes WHERE "windowId" = ANY($1) ORDER BY "createdAt", id'
_NAMES = 'SELECT id, COALESCE("displayName", username) AS name FROM "User" WHERE id = ANY($1)'

_IN_ORDER = itemgetter("agentId", "startTime", "trajectoryId")
_NO_NAMES = (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError)

T = TypeVar("T")


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
    """Reads windows by ``rules``. Safe to use from several tasks; owns nothing but a cache of agents' names."""

    def __init__(self, database: Database, rules: Rules, *, reconnect_for: timedelta = timedelta(minutes=2)) -> None:
        self.rules = rules
        self._database = database
        self._reconnect_for = reconnect_for
        self._names: dict[str, str | None] = {}
        self._may_read_names = True

    async def discover(self, *, everything: bool = False) -> list[WindowRef]:
        """The eligible windows within the lookback, oldest first; with ``everything`` also all the others."""
        return await self._patiently(lambda fetch: discovery.discover(fetch, self.rules, everything=everything))

    async def read(self, window_id: str) -> Window | None:
        """The one window, in whatever spelling it is asked for, eligible or not; None if it has no row."""
        canonical = normalise(window_id)
        if canonical is None:
            return None
        ref = await self._patiently(lambda fetch: discovery.find(fetch, canonical))
        return None if ref is None else await self._window(await self._fetch_batch([ref]), ref)

    async def stream(self, refs: Iterable[WindowRef]) -> AsyncGenerator[Window, None]:
        """Every window of ``refs``, in that order, once. Leaving early (``aclosing``) stops the reading ahead."""
        waiting = deque(refs)
        ahead = self._start_fetching(waiting, _FIRST_BATCH)
        try:
            while ahead is not None:
                batch = await ahead
                ahead = self._start_fetching(waiting, _windows_per_batch(batch))
                for ref in batch.refs:
                    yield await self._window(batch, ref)
                    await asyncio.sleep(0)  # lets the next batch come in while this one is decoded
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    def _start_fetching(self, waiting: deque[WindowRef], number: int) -> asyncio.Task[_Batch] | None:
        refs = [waiting.popleft() for _ in range(min(number, len(waiting)))]
        return asyncio.create_task(self._fetch_batch(refs), name=f"read {refs[0].window_id}") if refs else None

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
        hours = hours_of(row["windowHours"] for row in rows) if rows else ref.hours
        return Window(ref.window_id, hours, tuple(trajectories), outcomes, tuple(broken))

    async def _patiently(self, read: Callable[[Fetch], Awaitable[T]]) -> T:
        return await patiently(self._database, read, reconnect_for=self._reconnect_for)

    async def _fetch_batch(self, refs: Sequence[WindowRef]) -> _Batch:
        return await self._patiently(lambda fetch: self._batch(fetch, refs))

    async def _batch(self, fetch: Fetch, refs: Sequence[WindowRef]) -> _Batch:
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
        """Rows of the hours of ``refs`` that have no id which names an hour."""
        hours = [start_of(ref.window_id).replace(tzinfo=None) for ref in refs if ref.stray_agents]
        if not hours:
            return []
        agents = sorted({agent for ref in refs for agent in ref.stray_agents})
        bad_ids = sorted({raw for ref in refs for raw in ref.bad_ids})
        end = max(hours) + timedelta(hours=1)
        return await fetch(_STRAYS, self.rules.max_bytes, bad_ids, agents, min(hours), end, hours)

    async def _learn_names(self, fetch: Fetch, agents: set[str]) -> None:
        unknown = agents - self._names.keys()
        if not unknown or not self._may_read_names:
            return
        try:
            rows = await fetch(_NAMES, sorted(unknown))
        except _NO_NAMES as error:
            logger.info("agents are shown without their names: %s", error)
            self._may_read_names = False
            return
        self._names |= dict.fromkeys(unknown) | {row["id"]: row["name"] for row in rows}


def _windows_per_batch(last: _Batch) -> int:
    """How many windows to ask for next, judging by the size of the last ones."""
    fitting = _BATCH_BYTES * len(last.refs) // max(last.size, 1)
    return max(1, min(fitting, 4 * len(last.refs), _LARGEST_BATCH))
