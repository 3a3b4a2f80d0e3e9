"""When a period is due, and what its result is called.

Periods are named by their cron time in UTC, so daylight saving can neither repeat nor skip a period; "now" is
the database's clock (``trainer.ledger.periods``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from croniter import CroniterError, croniter

from data_bridge.errors import ConfigurationError
from trainer.ledger.periods import PeriodResult

MAX_CATCH_UP = timedelta(days=31)
"""A missed period older than this is not trained."""


def check_cron(expression: str) -> str:
    """``expression`` if croniter understands it, else a ConfigurationError that names the setting."""
    try:
        period_due(expression, datetime.now(UTC))  # also refuses a date that never comes, such as 31 February
    except (CroniterError, ValueError) as error:
        raise ConfigurationError(
            f"--cron: {expression!r} is not a cron expression ({error}); try '0 3 * * 0'."
        ) from None
    return expression


def period_due(expression: str, now: datetime) -> datetime:
    """The latest scheduled moment at or before ``now`` (aware UTC)."""
    # get_prev is exclusive, so start just after now.
    return _at(croniter(expression, now + timedelta(microseconds=1)).get_prev(datetime))


def next_period(expression: str, now: datetime) -> datetime:
    """The first scheduled moment after ``now``."""
    return _at(croniter(expression, now).get_next(datetime))


def _at(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def outcome_of(exit_code: int) -> PeriodResult:
    """A refused promotion (5) is a finished period: the training ran and the gate ruled."""
    if exit_code in (0, 5):
        return PeriodResult.DONE
    return PeriodResult.SKIPPED if exit_code == 3 else PeriodResult.FAILED


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a period, as sent to the webhook and printed with ``--json``."""

    job: str
    period: str
    outcome: str
    exit_code: int
    reason: str
