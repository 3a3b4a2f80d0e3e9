"""What happened, in order, for those who watch: written in the transaction of the deed, read above a cursor.

Ids come from a sequence, which hands them out before a transaction commits: of two events the later id can be visible
first. A reader that simply continued above the highest id that it has seen would lose the earlier event for ever.
``Cursor`` therefore passes over a missing id only when every transaction that could still bring it has ended. As an
event gets its id after its transaction got its number, these are all below a number that is taken once a later id is
visible, and nobody else's long transaction holds up the events while none of them is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from data_bridge.database import Database


class EventKind(StrEnum):
    RUN = "run"
    """A run started, resumed or ended."""
    STEP = "step"
    PROGRESS = "progress"
    RULING = "ruling"
    RELEASE = "release"
    COMMAND = "command"
    COLLAPSE = "collapse"
    """A step crossed a threshold, or was undone."""
    BUDGET = "budget"
    """Groups were not judged because --max-cost was reached."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One row. ``data`` holds numbers and short texts; what an agent wrote is not in it."""

    event_id: int
    at: datetime
    kind: EventKind
    model: str | None
    run_id: str | None
    data: Mapping[str, Any]


# The transaction's number is taken by the CTE, which is evaluated before the row that it gives gets its id.
_TELL = """
WITH own AS MATERIALIZED (SELECT pg_current_xact_id() AS number)
INSERT INTO hindsight.events (transaction, kind, model, run_id, data) SELECT number, $1, $2, $3, $4::jsonb FROM own
"""
_AFTER = """
SELECT event_id, at, kind, model, run_id, data::text,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest_open
  FROM hindsight.events WHERE event_id > $1 ORDER BY event_id LIMIT $2
"""
# A number of our own: a snapshot knows only up to which number transactions have ended, not which were given out.
_NUMBER = "SELECT pg_current_xact_id()::text::bigint"
_BETWEEN = """
SELECT event_id, at, kind, model, run_id, data::text FROM hindsight.events
 WHERE event_id > $1 AND event_id <= $2 ORDER BY event_id LIMIT $3
"""

AT_ONCE = 500
"""Events read by one query."""


async def tell(
    source: Any, kind: EventKind, data: Mapping[str, Any], *, model: str | None = None, run_id: str | None = None
) -> None:
    """Write an event. ``source``: the connection in whose transaction it happens, or a pool."""
    await source.execute(_TELL, kind.value, model, run_id, msgspec.json.encode(data).decode())


def _event(row: Any) -> LoggedEvent:
    return LoggedEvent(
        row["event_id"],
        row["at"],
        EventKind(row["kind"]),
        row["model"],
        row["run_id"],
        msgspec.json.decode(row["data"]),
    )


async def events_between(database: Database, after: int, until: int, limit: int = AT_ONCE) -> list[LoggedEvent]:
    """Events above ``after`` up to ``until``, which a cursor has passed: none of them can still be missing."""
    return [_event(row) for row in await database.pool.fetch(_BETWEEN, after, until, limit)]


async def newest_event(database: Database) -> int:
    """The highest id that is visible; others below it may follow."""
    return int(await database.pool.fetchval("SELECT coalesce(max(event_id), 0) FROM hindsight.events"))


@dataclass(slots=True)
class Cursor:
    """The position up to which every event has been seen. One query each time it is advanced, two where ids miss."""

    position: int
    _awaited: int = 0
    """All transactions below this number must have ended before ids that miss below ``_visible`` count as unused."""
    _visible: int = 0
    """The highest id that was visible when that number was taken."""

    @classmethod
    async def at_the_end(cls, database: Database) -> Cursor:
        """Some events back from the newest, so that ids still missing among the last are waited for."""
        return cls(max(0, await newest_event(database) - AT_ONCE))

    async def advance(self, database: Database) -> list[LoggedEvent]:
        """The next events in order, as far as none can be missing among them."""
        rows = await database.pool.fetch(_AFTER, self.position, AT_ONCE)
        events: list[LoggedEvent] = []
        for row in rows:
            if row["event_id"] != self.position + 1:
                if row["event_id"] > self._visible:
                    self._awaited, self._visible = await database.pool.fetchval(_NUMBER), rows[-1]["event_id"]
                if row["oldest_open"] < self._awaited:
                    break
            self.position = row["event_id"]
            events.append(_event(row))
        return events


_NOTIFY = """
UPDATE hindsight.events AS e SET notified_at = now()
  FROM (SELECT event_id FROM hindsight.events
         WHERE notified_at IS NULL AND kind IN ('run', 'release', 'collapse', 'budget')
           AND at > now() - interval '1 day' ORDER BY event_id LIMIT 50 FOR UPDATE SKIP LOCKED) AS fresh
 WHERE e.event_id = fresh.event_id
RETURNING e.event_id, e.at, e.kind, e.model, e.run_id, e.data::text
"""


async def claim_to_notify(database: Database) -> list[LoggedEvent]:
    """Events of the last day that nobody has told the webhook of: each is handed to one process, once."""
    return sorted((_event(row) for row in await database.pool.fetch(_NOTIFY)), key=lambda one: one.event_id)


async def forget_events(database: Database, older_than: timedelta) -> int:
    """Delete events older than that; returns how many. Positions stay valid: a reader goes on above them."""
    status: str = await database.pool.execute(
        "DELETE FROM hindsight.events WHERE at < now() - $1::interval", older_than
    )
    return int(status.rpartition(" ")[2])
