"""Every error that the console answers with, in one shape: ``{"error": {"code", "message", "field"}}``."""

from __future__ import annotations

import logging

import asyncpg
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data_bridge.errors import (
    ConfigurationError,
    DatabaseError,
    HindsightError,
    JudgeError,
    NotEnoughData,
    PromotionRefused,
)
from data_bridge.redaction import page_text, redact
from trainer.ledger.commands import KeyUsed
from trainer.ledger.model_lock import ModelBusy

logger = logging.getLogger(__name__)

CODES = {
    400: "not_json",
    401: "no_key",
    403: "not_allowed",
    404: "not_found",
    405: "wrong_method",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    415: "not_json",
    421: "wrong_host",
    422: "invalid",
    429: "too_many",
    500: "internal",
    502: "judge_failed",
    503: "database_away",
}


class ProblemDetail(BaseModel):
    """What went wrong, for machines by ``code``, for people by ``message``."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="One word for the kind of error.", examples=["conflict"])
    message: str = Field(description="One sentence that says what to do.")
    field: str | None = Field(default=None, description="The part of the request that is wrong.")


class Problem(BaseModel):
    """The one shape of errors."""

    model_config = ConfigDict(extra="forbid")

    error: ProblemDetail


class Refused(Exception):
    """A request that is answered with a problem."""

    def __init__(
        self, status: int, message: str, *, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, headers or {}

    def problem(self) -> Problem:
        said = page_text(redact(self.message))
        return Problem(error=ProblemDetail(code=CODES.get(self.status, "invalid"), message=said, field=self.field))


def refusal_of(error: Exception) -> Refused:
    """What the caller is told about any error: ours in our sentence, others only in the log."""
    match error:
        case Refused():
            return error
        case KeyUsed():
            return Refused(422, str(error), field="Idempotency-Key")
        case ModelBusy() | PromotionRefused():
            return Refused(409, str(error))
        case asyncpg.DataError():
            return Refused(
                422, "A value cannot be stored: it has a character or a size that the database does not take."
            )
        case DatabaseError() | asyncpg.PostgresError() | asyncpg.InterfaceError() | OSError() | TimeoutError():
            return _away(error)
        case NotEnoughData() | ConfigurationError():
            return Refused(409, str(error))
        case JudgeError():
            return Refused(502, str(error))
        case HindsightError():
            return Refused(409, str(error))
        case ValidationError():
            return invalid(error)
        case _:
            logger.error("a request failed: %s: %s", type(error).__name__, redact(str(error)), exc_info=error)
            return Refused(500, "The console failed on this request; its log says why.")


def _away(error: Exception) -> Refused:
    logger.warning("the database failed on a request: %s: %s", type(error).__name__, redact(str(error)))
    said = str(error) if isinstance(error, DatabaseError) else "The database cannot be reached or refused: try again."
    return Refused(503, said, headers={"Retry-After": "5"})


def invalid(error: ValidationError) -> Refused:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    named = (str(part) for part in first["loc"])
    field = ".".join(part for part in named if not part.startswith("("))  # the tag of a union is not a field
    message = str(first["msg"]).removeprefix("Value error, ")
    return Refused(422, f"{field or 'The request'}: {message[:1].lower()}{message[1:]}.", field=field or None)
