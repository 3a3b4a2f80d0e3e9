"""The stream of events: one poller for a server, however many pages are open.

The poller asks the ledger once a second for what comes after its cursor, which waits for late commits. Every stream
has its own position and takes what is above it from the poller's memory, or from the ledger if it was away for longer.
So a client that comes back with ``Last-Event-ID``, to this or to another server, misses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import takewhile

from data_bridge.database import Database
from data_bridge.redaction import redact
from trainer.ledger.events import AT_ONCE, Cursor, LoggedEvent, events_between

logger = logging.getLogger(__name__)

EVERY = timedelta(seconds=1)
REMEMBERED = 1000
"""Events in memory: enough for pages that reload or reconnect."""
MAX_STREAMS = 1000


class Hub:
    """Holds the newest events, and wakes the streams when there are more."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._events: deque[LoggedEvent] = deque(maxlen=REMEMBERED)
        self._more = asyncio.Event()
        self._cursor: Cursor | None = None
        self._is_closed = False
        self.streams = 0
        self.queries = 0
        """How often the ledger was asked for news."""

    @property
    def position(self) -> int:
        """The event up to which none can be missing."""
        return self._cursor.position if self._cursor is not None else 0

    @asynccontextmanager
    async def polling(self, every: timedelta = EVERY) -> AsyncIterator[Hub]:
        self._cursor = await Cursor.at_the_end(self._database)
        await self._poll()
        polling = asyncio.create_task(self._keep_polling(every.total_seconds()), name="poll events")
        try:
            yield self
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            self._wake()

    async def _keep_polling(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._poll()
            except Exception as error:  # Postgres restarts: the next second may be better, and nothing was passed over
                logger.warning("events could not be read (%s); retrying", redact(str(error) or type(error).__name__))

    async def _poll(self) -> None:
        assert self._cursor is not None
        while True:
            self.queries += 1
            found = await self._cursor.advance(self._database)
            if found:
                self._events.extend(found)
                self._wake()
            if len(found) < AT_ONCE:
                return

    def close(self) -> None:
        """End all streams: the server stops, and their clients go on with another or with the next."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    async def after(self, position: int) -> AsyncIterator[LoggedEvent]:
        """Every event above ``position``, in order, until the server stops."""
        self.streams += 1
        try:
            while not self._is_closed:
                more, until = self._more, self.position
                known = await self._between(position, until)
                for event in known:
                    position = event.event_id
                    yield event
                if not known:
                    position = max(position, until)  # what was there is deleted by now
                    await more.wait()
        finally:
            self.streams -= 1

    async def _between(self, position: int, until: int) -> list[LoggedEvent]:
        if position >= until:
            return []
        if self._events and self._events[0].event_id <= position + 1:
            newest_first = takewhile(lambda event: event.event_id > position, reversed(self._events))
            return [event for event in newest_first if event.event_id <= until][::-1]
        return await events_between(self._database, position, until)
