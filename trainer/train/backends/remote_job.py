"""A training job on another machine: its receipt, which the ledger keeps, and following it to its end.

The server has no idempotency key and no list of jobs. Whether it accepted a batch follows from the steps: a batch sent
when the newest checkpoint was N was accepted if there is a checkpoint after N. So the receipt contains that step. The
policy step of the batch would not do: an overlapping pipeline prepares a batch some steps before it is sent.

After a failed request, the options are: wait and retry, give up, or find out. The difference that matters is between a
submission that was certainly not accepted, which may be sent again, and one whose answer was lost, which may not: the
server would train the batch twice.

ART's own loop polls every second forever, and forgets the job at the fourth fault in a row. The loop here uses the same
client and the same requests, but its own timing, with deadlines and growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import httpx
import openai

from data_bridge.database import GONE_AFTER
from data_bridge.errors import BackendError
from data_bridge.redaction import redact

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNCONFIRMED = "unconfirmed"
"""Instead of the job's id: the batch is being sent, or was sent and the answer never arrived."""
REFUSED = "refused"
"""Instead of the job's id: the server answered that it did not accept the batch."""

_TEXT = re.compile(r"(?P<job>\S+) \(after step (?P<step>\d+), (?P<tokens>\d+) tokens, sent (?P<sent>\S+)\)")


@dataclass(frozen=True, slots=True)
class Receipt:
    """One submission of one batch."""

    job: str
    """The job's id, or ``unconfirmed`` or ``refused``."""
    after_step: int
    """The newest checkpoint when the batch was sent."""
    tokens: int
    sent: datetime

    def __str__(self) -> str:
        return f"{self.job} (after step {self.after_step}, {self.tokens} tokens, sent {self.sent:%Y-%m-%dT%H:%M:%SZ})"

    @classmethod
    def before_sending(cls, after_step: int, tokens: int) -> Receipt:
        return cls(UNCONFIRMED, after_step, tokens, datetime.now(UTC).replace(microsecond=0))

    @classmethod
    def parse(cls, text: str, policy_step: int) -> Receipt:
        """The receipt that was stored as ``text``; a job id alone counts as sent at ``policy_step``."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return cls(text, policy_step, 0, datetime.now(UTC))
        sent = datetime.strptime(match["sent"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return cls(match["job"], int(match["step"]), int(match["tokens"]), sent)

    def taken_as(self, job: str) -> Receipt:
        return replace(self, job=job)

    def refused(self) -> Receipt:
        return replace(self, job=REFUSED)

    @property
    def job_id(self) -> str | None:
        return None if self.job in (UNCONFIRMED, REFUSED) else self.job

    @property
    def is_refused(self) -> bool:
        return self.job == REFUSED


# What a fault means

FAULTS = (openai.OpenAIError, httpx.HTTPError, TimeoutError, OSError, ValueError, AttributeError, TypeError)
"""Every error that a request can raise. ART's client raises the last three for an unexpected answer."""


class Unreadable(ValueError):
    """An answer with status 200 that is not W&B's: the page of a gateway or proxy, or something else altogether."""

    def __str__(self) -> str:
        return "the answer is not W&B's; is it the page of a proxy or a login?"


_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_NO_ANSWER = (openai.APIConnectionError, httpx.HTTPError, OSError)
"""Not even an error was answered: refused, lost, or silent."""
_LEAST_REQUEST, _LAST_WORD = 1.0, 3.0
_MAY_PASS = frozenset({404, 408, 409, 425, 429})


class Fate(StrEnum):
    """What happened to a submission that failed."""

    NOT_TAKEN = "not_taken"
    """The server was busy or never reached: the batch can be sent again after a pause."""
    REFUSED = "refused"
    """Not accepted, and the same request would be refused again."""
    UNKNOWN = "unknown"
    """It may have been accepted. It must not be sent again before this is known."""


def fate_of(error: BaseException) -> Fate:
    """What happened to the submission that ended in ``error``. Anything uncertain is ``UNKNOWN``."""
    if isinstance(error, openai.APIStatusError):
        if error.status_code == 429:
            return Fate.NOT_TAKEN
        return Fate.REFUSED if 400 <= error.status_code < 500 and error.status_code != 408 else Fate.UNKNOWN
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, _NEVER_SENT):
            return Fate.NOT_TAKEN
        cause = cause.__cause__
    return Fate.UNKNOWN


def may_pass(error: BaseException) -> bool:
    """Whether a request without side effects (a GET, or the idempotent registration) is worth a retry."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code >= 500 or error.status_code in _MAY_PASS
    return True


def is_refused_key(error: BaseException | None) -> bool:
    return isinstance(error, openai.APIStatusError) and error.status_code in (401, 403)


def explain(error: BaseException) -> str:
    """A short description for the user, without the key and without HTML."""
    if isinstance(error, openai.APIStatusError):
        detail = "the key was refused" if is_refused_key(error) else " ".join(error.message.split())[:200]
        return redact(f"HTTP {error.status_code}, {detail}")
    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return "no answer in time"
    if isinstance(error, (ValueError, AttributeError, TypeError)):
        return str(Unreadable())
    cause = error.__cause__ or error
    return redact(" ".join(f"{type(cause).__name__} {cause}".split())[:200])


class Patience:
    """Tolerates faults for a certain time, not a certain number: a server that is in trouble for nine minutes, and says
    so, is not lost. One that says nothing at all is gone after ``Pace.gone_after``."""

    def __init__(self, seconds: float, what: str, pace: Pace) -> None:
        self._seconds, self._what, self._pace = seconds, what, pace
        self._since: float | None = None
        self._heard = time.monotonic()

    def answered(self) -> None:
        self._since, self._heard = None, time.monotonic()

    @property
    def request(self) -> float:
        """Seconds for the next request: a server that is silent is given up in time."""
        return min(self._pace.request, max(self._left, _LEAST_REQUEST))

    async def pause(self, seconds: float) -> None:
        """Wait before the next request; a silent server is asked for the last time when it counts as gone."""
        await asyncio.sleep(min(seconds, max(self._left, 0.0)) if self._since is not None else seconds)

    @property
    def _left(self) -> float:
        return self._heard + self._pace.gone_after - time.monotonic()

    def forgive(self, error: BaseException) -> None:
        """BackendError if ``error`` is permanent, or if there has been no answer, or no good one, for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not isinstance(error, _NO_ANSWER):
            self._heard = now
        is_gone = now - self._heard >= self._pace.gone_after
        if not may_pass(error) or is_gone or now - self._since > self._seconds:
            raise unanswered(self._what, error) from error


def unanswered(what: str, error: BaseException) -> BackendError:
    """What ends a run whose question about ``what`` W&B does not answer, or only with ``error``."""
    return BackendError(
        f"W&B does not answer about {what} ({explain(error)}): "
        "check WANDB_API_KEY, --wandb-base-url and the network, then run again to continue from here."
    )


# Following a job


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the server is polled, and how long it may be silent. All in seconds."""

    first_pause: float = 1.0
    max_pause: float = 15.0
    request: float = 60.0
    """Maximum time for one request, including ART's own three retries."""
    patience: float = 600.0
    """Maximum time without a good answer before a job is no longer followed (it continues; the next run finds it)."""
    gone_after: float = GONE_AFTER.total_seconds()
    """The same without any answer, not even an error."""
    probe: float = 10.0
    """Maximum time for a small question that is asked while the answer to a submission is awaited."""
    opening: float = 30.0
    """The same while the model is registered: a person is probably waiting for it."""
    checkpoint_grace: float = 120.0
    """How long after the end of a job its checkpoint may still appear."""

    @property
    def brief(self) -> Pace:
        """For one more question to a server that was given up."""
        return replace(self, request=_LAST_WORD, patience=_LAST_WORD, gone_after=_LAST_WORD)

    def longer(self, pause: float) -> float:
        return min(pause * 1.5, self.max_pause)


class Event(Protocol):
    """One event of a training job, as ART's client returns it."""

    id: str
    type: str
    data: dict[str, Any]


EventsAfter = Callable[[str | None], AsyncIterator[Event]]
"""The events of one job after the given event id, oldest first."""


@dataclass(slots=True)
class JobEnd:
    """How a job ended: with a server error, or successfully. The metrics are one mapping per gradient step."""

    error: str | None = None
    metrics: list[dict[str, float]] = field(default_factory=list)


def deadline_of(limit: timedelta) -> float:
    return time.monotonic() + limit.total_seconds()


async def follow_job(job_id: str, events_after: EventsAfter, *, deadline: float, pace: Pace, batch: str = "") -> JobEnd:
    """Wait until the job has ended. BackendError after the deadline or too many faults; the job then continues."""
    end, seen = JobEnd(), None
    patience = Patience(pace.patience, f"training job {job_id}{batch}", pace)
    pause = pace.first_pause
    while True:
        try:
            async with asyncio.timeout(patience.request):
                async for event in events_after(seen):
                    if _take(event, end):
                        return end
                    seen, pause = event.id, pace.first_pause
                    patience.answered()
            patience.answered()
        except FAULTS as fault:
            logger.debug("Job %s: %s", job_id, explain(fault))
            patience.forgive(fault)
        if time.monotonic() + pause > deadline:
            raise BackendError(
                f"W&B training job {job_id} has not ended within --remote-deadline and is still running: "
                "look at it in W&B, then run again to resume following it."
            )
        await patience.pause(pause)
        pause = pace.longer(pause)


def _take(event: Event, end: JobEnd) -> bool:
    """Record one event; True if it was the last."""
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
    """The answer to a request without side effects, retried until ``patience`` seconds have passed."""
    forgiving = Patience(patience, what, pace)
    pause = pace.first_pause
    while True:
        try:
            async with asyncio.timeout(forgiving.request):
                return await question()
        except FAULTS as fault:
            logger.debug("Asking about %s: %s", what, explain(fault))
            forgiving.forgive(fault)
        await forgiving.pause(pause)
        pause = pace.longer(pause)


async def is_there(question: Callable[[], Awaitable[object]], pace: Pace) -> bool:
    """Whether the server answers a request without side effects, be it with an error. Asked once."""
    try:
        async with asyncio.timeout(pace.probe):
            await question()
    except FAULTS as fault:
        return not isinstance(fault, _NO_ANSWER)
    return True


async def wait_for_step(
    newest_step: Callable[[], Awaitable[int]], after_step: int, *, deadline: float, pace: Pace, batch: str = ""
) -> int | None:
    """The newest step as soon as it is after ``after_step``; None if it still is not at the deadline.

    The server is asked at least once, and faults are tolerated until the deadline, unless it says nothing at all.
    """
    pause = pace.first_pause
    while True:
        patience = max(deadline - time.monotonic(), pace.opening)
        step = await ask(newest_step, f"the newest checkpoint{batch}", patience=patience, pace=pace)
        if step > after_step:
            return step
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        await asyncio.sleep(min(pause, left))
        pause = pace.longer(pause)
