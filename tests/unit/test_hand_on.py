"""What the scheduler was told reaches the training as variables that mean the same."""

from __future__ import annotations

from pathlib import Path

from trainer.config.commands import ScheduleSettings, TrainSettings
from trainer.config.sources import load
from trainer.schedule.training_process import variables_for

NO_FILE = Path("/nonexistent/.env")


def test_flags_of_the_scheduler_that_the_training_has_too_are_handed_on_and_nothing_else() -> None:
    variables = {"DATABASE_URL": "postgres://u:secret@h/d"}
    flags = ["--home", "/srv/h", "--lookback", "36h", "--min-windows", "5"]
    flags += ["--allow-partial-outcomes", "--cron", "0 4 * * *", "--job", "nightly"]
    told = load(ScheduleSettings, flags, prog="", description="", environ=variables, dotenv=NO_FILE)
    variables = variables_for(TrainSettings, told)
    assert variables.keys() == {
        "DATABASE_URL",
        "HINDSIGHT_HOME",
        "HINDSIGHT_LOOKBACK",
        "HINDSIGHT_MIN_WINDOWS",
        "HINDSIGHT_ALLOW_PARTIAL_OUTCOMES",
    }
    heard = load(TrainSettings, [], prog="", description="", environ=variables, dotenv=NO_FILE)
    assert heard.secrets.database_url == told.secrets.database_url
    assert heard.common.home == told.common.home
    for name in ("lookback", "min_windows", "allow_partial_outcomes"):
        assert getattr(heard.windows, name) == getattr(told.windows, name), name
