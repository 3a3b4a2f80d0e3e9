"""Following a remote training job to its end: with deadlines, growing pauses, and faults forgiven for a time.

ART's own loop asks every second for ever, and forgets the job at the fourth fault in a row. This one asks the
same client the same questions; it only keeps its own clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from data_bridge.errors import BackendError
from data_bridge.redaction import redact
from trainer.train.backends.faults import FAULTS, Patience, explain

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the server is asked, and how long it may stay silent. All in seconds."""

    first_pause: float = 1.0
    longest_pause: float = 15.0
    request: float = 60.0
    """Longest that one question may take, ART's own three retries included."""
    patience: float = 600.0
    """Longest without one good answer before a job is no longer followed (it goes on; the next run finds it)."""
    opening: float = 30.0
    """The same while the model is registered: somebody is probably sitting in front of it."""
    checkpoint_grace: float = 120.0
    """How long after the end of a job its checkpoint may still turn up."""

    def longer(self, pause: float) -> float:
        return min(pause * 1.5, self.longest_pause)


class Event(Protocol):
    """One event of a training job, as ART's client gives it."""

    id: str
    type: str
    data: dict[str, Any]


EventsAfter = Callable[[str | None], AsyncIterator[Event]]
"""The events of one job after the given event id, oldest first."""


@dataclass(slots=True)
class JobEnd:
    """How a job ended: with an error of the server's, or well. The metrics are one mapping per gradient step."""

    error: str | None = None
    metrics: list[dict[str, float]] = field(default_factory=list)


def deadline_of(limit: timedelta) -> float:
    return time.monotonic() + limit.total_seconds()


async def follow_job(job_id: str, events_after: EventsAfter, *, deadline: float, pace: Pace) -> JobEnd:
    """Wait until the job has ended. BackendError when the deadline or the patience is over; the job then goes on."""
    end, seen = JobEnd(), None
    patience = Patience(pace.patience, f"training job {job_id}")
    pause = pace.first_pause
    while True:
        try:
            async with asyncio.timeout(pace.request):
                async for event in events_after(seen):
                    if _take(event, end):
                        return end
                    seen, pause = event.id, pace.first_pause
            patience.answered()
        except FAULTS as fault:
            logger.debug("Job %s: %s", job_id, explain(fault))
            patience.forgive(fault)
        if time.monotonic() + pause > deadline:
            raise BackendError(
                f"W&B training job {job_id} has not ended within --remote-deadline and goes on there: "
                "look at it in W&B, then run again to take it up where it is."
            )
        await asyncio.sleep(pause)
        pause = pace.longer(pause)


def _take(event: Event, end: JobEnd) -> bool:
    """Note one event; whether it was the last."""
    if event.type == "gradient_step":
        end.metrics.append(numbers(event.data))
    elif event.type == "training_failed":
        end.error = redact(str(event.data.get("error_message") or "no reason given"))[:300]
        return True
    return event.type == "training_ended"


def numbers(data: Mapping[str, Any]) -> dict[str, float]:
    """The entries of ``data`` that are finite numbers; a server may add others."""
    return {
        key: float(value)
        for key, value in data.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


async def ask(question: Callable[[], Awaitable[T]], what: str, *, patience: float, pace: Pace) -> T:
    """The answer to a question that changes nothing, asked again until ``patience`` seconds have passed."""
    forgiving = Patience(patience, what)
    pause = pace.first_pause
    while True:
        try:
            async with asyncio.timeout(pace.request):
                return await question()
        except FAULTS as fault:
            logger.debug("Asking about %s: %s", what, explain(fault))
            forgiving.forgive(fault)
        await asyncio.sleep(pause)
        pause = pace.longer(pause)


async def wait_for_step(
    newest_step: Callable[[], Awaitable[int]], after_step: int, *, deadline: float, pace: Pace
) -> int | None:
    """The newest step as soon as it lies after ``after_step``; None if it still does not at the deadline.

    The question is always asked at least once, and faults are forgiven until the deadline.
    """
    pause = pace.first_pause
    while True:
        patience = max(deadline - time.monotonic(), pace.opening)
        step = await ask(newest_step, "the newest checkpoint", patience=patience, pace=pace)
        if step > after_step:
            return step
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        await asyncio.sleep(min(pause, left))
        pause = pace.longer(pause)
