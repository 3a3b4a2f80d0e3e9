"""What each command offers on its command line, and which variables it puts up with."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.settings_read import commands, settings_read_by
from trainer.cli.settings import CertifySettings, all_variables
from trainer.settings_source import load

READ_OTHERWISE = {"debug"}
"""``--debug`` is read by ``run_command`` around every command, with ``getattr``."""


@pytest.mark.parametrize("command", commands())
def test_a_command_offers_no_flag_that_its_code_does_not_read(command: str) -> None:
    assert set(commands()[command].model_fields) - settings_read_by(command) - READ_OTHERWISE == set()


def test_the_scan_tells_what_is_read_from_what_is_not() -> None:
    promote = settings_read_by("promote")
    assert {"min_gain", "canary", "serve_url", "until"} <= promote
    assert not {"promote", "eval_samples", "base_model", "lookback"} & promote


@pytest.mark.parametrize("command", commands())
def test_a_command_does_not_refuse_the_variables_of_another(command: str) -> None:
    argv = ["export", "week.jsonl"] if command == "traces" else []
    load(
        commands()[command],
        argv,
        prog=command,
        description="",
        environ=dict.fromkeys(all_variables(), ""),
        dotenv=Path("/nonexistent"),
        known_variables=all_variables(),
    )


def test_the_examination_decides_in_how_many_orders_it_asks() -> None:
    settings = CertifySettings(judge_model="judge", judge_timeout=timedelta(minutes=3), max_cost=3.0)
    judge = settings.judge_asked_in(orders=1)
    assert (judge.judge_model, judge.judge_timeout, judge.max_cost) == ("judge", settings.judge_timeout, 3.0)
    assert (judge.judge_orders, settings.judge_asked_in(2).judge_orders) == (1, 2)
