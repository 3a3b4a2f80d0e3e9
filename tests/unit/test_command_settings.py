"""What each command offers on its command line, and which variables it puts up with."""

from __future__ import annotations

import importlib
from datetime import timedelta
from pathlib import Path

import pytest

from tests.settings_read import commands, settings_read_by
from trainer.config.commands import CertifySettings, all_variables
from trainer.config.sources import load

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


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        ("check_windows", ["--lookback", "999999d"]),
        ("traces", ["export", "week.jsonl", "--lookback", "9999999d"]),
        ("traces", ["export", "week.jsonl", "--until", "0001-01-01"]),
        ("spawn_test_agents", ["--windows", "1000000000"]),
    ],
)
def test_what_the_calendar_does_not_hold_is_a_wrong_setting_and_no_fault_of_ours(
    command: str, argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"trainer.cli.{command}").main
    assert main([*argv, "--home", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {argv[-2]}: ")


def test_the_examination_decides_in_how_many_orders_it_asks() -> None:
    settings = CertifySettings(judge_model="judge", judge_timeout=timedelta(minutes=3), max_cost=3.0)
    judge = settings.judge_asked_in(orders=1)
    assert (judge.judge_model, judge.judge_timeout, judge.max_cost) == ("judge", settings.judge_timeout, 3.0)
    assert (judge.judge_orders, settings.judge_asked_in(2).judge_orders) == (1, 2)
