"""No stage is handed more settings than it reads, secrets least of all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.settings_read import Handed, classes_in, handed, reads_from
from tests.source_types import FOLDERS, Definition, fields_of, modules_in
from trainer.config.sections import JudgeSecrets
from trainer.config.settings import Command
from trainer.config.training import GateSettings

STAGES = tuple(f"trainer.{stage}." for stage in ("plan", "judge", "train", "evaluate", "promote", "serve", "lessons"))
KNOW_ALL_SETTINGS = ("trainer.cli.", "trainer.run.", "trainer.pipeline", "trainer.config.")


@pytest.fixture(scope="module")
def everywhere() -> list[Handed]:
    """Every function and class of ours that is handed settings, with what it is handed.

    Found by a test, not at collection: it takes seconds, and each worker collects all tests.
    """
    return [one for module in modules_in("trainer") for one in handed(module)]


def with_all_settings(found: Iterable[Handed]) -> list[Definition]:
    """Those that are handed the settings of a command; of a mere ``Command`` nothing can be read by name."""
    return [at for at, cls in found if issubclass(cls, Command) and cls is not Command]


def with_secrets(found: Iterable[Handed]) -> list[Definition]:
    sections = ((at, cls) for at, cls in found if not issubclass(cls, Command))
    return [at for at, cls in sections if any("SecretStr" in str(kind) for kind in fields_of(cls).values())]


def test_only_commands_runs_and_the_pipeline_are_handed_all_settings_of_a_command(everywhere: list[Handed]) -> None:
    assert [at for at in with_all_settings(everywhere) if not at.module.startswith(KNOW_ALL_SETTINGS)] == []


def test_a_stage_reads_every_setting_that_it_is_handed(everywhere: list[Handed]) -> None:
    stages = [one for one in everywhere if one.at.module.startswith(STAGES) and one.at in classes_in(one.at.module)]
    assert stages
    assert {one: unread for one in stages if (unread := reads_from(one.at).unread(one.settings))} == {}


def test_secrets_are_handed_only_to_those_who_use_them(everywhere: list[Handed]) -> None:
    trusted = [at for at in with_secrets(everywhere) if not at.module.startswith("trainer.config.")]
    assert [at for at in trusted if not reads_from(at).reveals_secret] == []


PLANTED = """
from dataclasses import dataclass

from trainer.config.commands import PromoteSettings
from trainer.config.derived import judge_key
from trainer.config.sections import JudgeSecrets
from trainer.config.training import GateSettings


@dataclass
class Holder:
    settings: PromoteSettings
    limits: GateSettings | None = None


class Greedy:
    def __init__(self, held: Holder) -> None:
        self.held = held

    def work(self) -> float:
        return self.held.limits.min_gain


def calls(secrets: JudgeSecrets) -> str:
    return judge_key(secrets, None)


def looks(secrets: JudgeSecrets) -> bool:
    return secrets.judge_api_key is None
"""


def test_the_scan_finds_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_stage.py").write_text(PLANTED)
    monkeypatch.setattr("tests.source_types.FOLDERS", (*FOLDERS, tmp_path))
    found = list(handed("planted_stage"))
    greedy, calls, looks = (Definition("planted_stage", name) for name in ("Greedy", "calls", "looks"))
    assert with_all_settings(found) == [greedy]
    assert (greedy, GateSettings) in found
    assert reads_from(greedy).unread(GateSettings) == set(GateSettings.model_fields) - {"min_gain"}
    assert with_secrets(found) == [calls, looks]
    assert [reads_from(at).reveals_secret for at in (calls, looks)] == [True, False]
    assert reads_from(looks).unread(JudgeSecrets) == {"openai_api_key"}
