"""What each command offers on its command line, and which variables it puts up with."""

from __future__ import annotations

import importlib
from datetime import timedelta
from pathlib import Path

import pytest

from tests.settings_read import commands, reads_from, settings_read_by
from tests.source_types import FOLDERS, Definition
from trainer.config.commands import all_variables
from trainer.config.data_commands import CertifySettings
from trainer.config.settings import sections_of, settings_from
from trainer.config.sources import load
from trainer.config.training import AddressSettings, GateSettings, PromotionSettings


@pytest.mark.parametrize("command", commands())
def test_a_command_offers_no_flag_that_its_code_does_not_read(command: str) -> None:
    read = settings_read_by(command)
    unread = {name: read.unread(section) for name, section in sections_of(commands()[command]).items()}
    assert set().union(*unread.values()) == set()


def test_the_scan_tells_what_is_read_from_what_is_not() -> None:
    promote = settings_read_by("promote").names
    assert {"min_gain", "canary", "serve_url", "until"} <= promote
    assert not {"promote", "eval_samples", "base_model", "lookback"} & promote


PLANTED = """
from trainer.config.commands import PromoteSettings
from trainer.config.training import AddressSettings, GateSettings


def main(settings: PromoteSettings) -> None:
    promotion = settings.promotion
    Stage(settings.gate).work()
    promotion.canary, there(promotion)


def there(addresses: AddressSettings) -> str:
    return addresses.serve_url


class Stage:
    def __init__(self, limits: GateSettings) -> None:
        self._limits = limits

    def work(self, max_error_rate: str = "max_length_ratio") -> float:
        max_error_rate.max_safety_blocks
        return self._limits.min_gain + self._limits.model_copy().max_kl
"""


def test_the_scan_follows_sections_and_finds_what_nothing_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.setattr("tests.source_types.FOLDERS", (*FOLDERS, tmp_path))
    read = reads_from(Definition("planted", "main"))
    assert read.unread(GateSettings) == {"max_error_rate", "max_safety_blocks", "max_length_ratio"}
    assert read.unread(PromotionSettings) == {"wandb_base_url"}
    assert reads_from(Definition("planted", "Stage")).unread(AddressSettings) == {"serve_url", "wandb_base_url"}


@pytest.mark.parametrize("command", commands())
def test_a_command_does_not_refuse_the_variables_of_another(command: str) -> None:
    argv = {"traces": ["export", "week.jsonl"], "lessons": ["list"], "prompts": ["list"]}.get(command, [])
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
    settings = settings_from(CertifySettings, judge_model="judge", judge_timeout=timedelta(minutes=3), max_cost=3.0)
    judge = settings.judge.asked_in(orders=1)
    assert (judge.judge_model, judge.judge_timeout, judge.max_cost) == ("judge", settings.judge.judge_timeout, 3.0)
    assert (judge.judge_orders, settings.judge.asked_in(2).judge_orders) == (1, 2)
