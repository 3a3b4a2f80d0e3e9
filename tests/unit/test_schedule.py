"""The cron arithmetic of periods: in UTC, so that daylight saving changes nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from data_bridge.errors import ConfigurationError
from trainer.ledger.periods import PeriodResult as Outcome
from trainer.schedule.cron import check_cron, next_period, outcome_of, period_due

WEEKLY = "0 3 * * 0"


def test_the_period_that_is_due_is_the_last_scheduled_moment() -> None:
    wednesday = datetime(2026, 11, 18, 12, tzinfo=UTC)
    assert period_due(WEEKLY, wednesday) == datetime(2026, 11, 15, 3, tzinfo=UTC)
    assert next_period(WEEKLY, wednesday) == datetime(2026, 11, 22, 3, tzinfo=UTC)


def test_a_period_is_due_at_its_very_moment() -> None:
    moment = datetime(2026, 11, 15, 3, tzinfo=UTC)
    assert period_due(WEEKLY, moment) == moment
    assert next_period(WEEKLY, moment) == moment + timedelta(days=7)


@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_each_period_comes_once_across_a_daylight_saving_change(day: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        seen = {period_due("30 * * * *", day + timedelta(minutes=10 * tick)) for tick in range(6 * 24)}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert len(seen) == 25  # the 24 of the day, and the one that was due when it began
    assert sorted(seen) == [day - timedelta(minutes=30) + timedelta(hours=hour) for hour in range(25)]


def test_a_refused_promotion_is_a_finished_period_and_too_little_data_a_skipped_one() -> None:
    outcomes = {code: outcome_of(code) for code in (0, 1, 2, 3, 4, 5, 130, -9)}
    assert outcomes[0] is outcomes[5] is Outcome.DONE
    assert outcomes[3] is Outcome.SKIPPED
    assert {outcomes[code] for code in (1, 2, 4, 130, -9)} == {Outcome.FAILED}


def test_a_wrong_expression_names_the_setting() -> None:
    for expression in ("every sunday", "0 3 31 2 *"):
        with pytest.raises(ConfigurationError, match="--cron"):
            check_cron(expression)
