"""What a failed request to the training server means: wait and ask again, give up, or nobody knows.

The difference that matters is between a submission that was certainly not taken, which may be sent again, and
one whose answer was lost, which may not: the server would train the batch twice.
"""

from __future__ import annotations

import time
from enum import StrEnum

import httpx
import openai

from data_bridge.errors import BackendError
from data_bridge.redaction import redact

FAULTS = (openai.OpenAIError, httpx.HTTPError, TimeoutError, OSError, ValueError, AttributeError, TypeError)
"""All that a request can end in. The last three are ART's client meeting an answer that is not of the contract."""

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_MAY_PASS = frozenset({404, 408, 409, 425, 429})


class Fate(StrEnum):
    """What became of a submission that failed."""

    NOT_TAKEN = "not_taken"
    """Busy, or never reached: it can be sent again after a pause."""
    REFUSED = "refused"
    """Not taken, and the same request will be refused again."""
    UNKNOWN = "unknown"
    """It may have been taken. It must not be sent again before this is known."""


def fate_of(error: BaseException) -> Fate:
    """What became of the submission that ended in ``error``. Whatever is not certain is ``UNKNOWN``."""
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
    """Whether a question (a GET, or the idempotent registration) is worth asking again."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code >= 500 or error.status_code in _MAY_PASS
    return True


def is_refused_key(error: BaseException | None) -> bool:
    return isinstance(error, openai.APIStatusError) and error.status_code in (401, 403)


def explain(error: BaseException) -> str:
    """A few words for the user, without the key and without a page of HTML."""
    if isinstance(error, openai.APIStatusError):
        detail = "the key was refused" if is_refused_key(error) else " ".join(error.message.split())[:200]
        return redact(f"HTTP {error.status_code}, {detail}")
    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return "no answer in time"
    cause = error.__cause__ or error
    return redact(" ".join(f"{type(cause).__name__} {cause}".split())[:200])


class Patience:
    """Forgives faults for a time, not for a number of them: a server that is down for nine minutes is not lost."""

    def __init__(self, seconds: float, what: str) -> None:
        self._seconds = seconds
        self._what = what
        self._since: float | None = None

    def answered(self) -> None:
        self._since = None

    def forgive(self, error: BaseException) -> None:
        """BackendError if ``error`` will not pass, or there has been no good answer for too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not may_pass(error) or now - self._since > self._seconds:
            raise BackendError(
                f"W&B does not answer about {self._what} ({explain(error)}): "
                "check WANDB_API_KEY and the network, then run again to go on from here."
            ) from error
