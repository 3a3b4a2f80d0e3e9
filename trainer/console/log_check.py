"""What ``check_windows`` says, kept for a while: it reads the whole lookback, which a page must not wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from data_bridge.redaction import redact

if TYPE_CHECKING:
    from trainer.run.check_report import CheckReport

logger = logging.getLogger(__name__)

FRESH = timedelta(minutes=5)


class LogCheck:
    """The newest report; a request for it starts the next when it is old."""

    def __init__(self, make: Callable[[], Awaitable[CheckReport]], fresh: timedelta = FRESH) -> None:
        self._make, self._fresh = make, fresh
        self._checking: asyncio.Task[None] | None = None
        self.report: CheckReport | None = None
        self.checked_at: datetime | None = None
        self.fault: str | None = None

    @property
    def is_checking(self) -> bool:
        return self._checking is not None and not self._checking.done()

    def ask(self) -> None:
        is_old = self.checked_at is None or datetime.now(UTC) - self.checked_at > self._fresh
        if is_old and not self.is_checking:
            self._checking = asyncio.create_task(self._check(), name="check the log")

    async def _check(self) -> None:
        try:
            self.report, self.fault = await self._make(), None
        except Exception as error:
            self.fault = redact(str(error) or type(error).__name__)
            logger.warning("the log could not be checked: %s", self.fault)
        self.checked_at = datetime.now(UTC)

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
