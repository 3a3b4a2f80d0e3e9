"""What a prompt is worth on training windows: whose decisions, how many, with which values, and asked how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.window_ids import end_of
from tests.integration.test_lessons_judged import WINDOWS
from tests.integration.test_prompts_released import Obeys, kept, model, played, settings_for
from trainer.config.training import ModelSettings
from trainer.prompts.material import PromptMaterial
from trainer.prompts.structure import parse
from trainer.run.prompt_release import gate_prompt
from trainer.run.prompt_trials import TrialJudges, open_arena, replying_model, training_windows
from trainer.types import Checkpoint

__all__ = ["model", "played"]  # fixtures
LOGGED = "Trade the news."
"""The system text of the simulated market's agents."""


def small(home: Path, server: Obeys, **values: Any) -> Any:
    few: dict[str, Any] = {"action": "learn", "eval_windows": len(WINDOWS) // 2, "prompt_points": 3}
    return settings_for(home, server, **(few | {"until": f"{end_of(WINDOWS[-1], 1):%Y-%m-%dT%H:%M}"} | values))


async def test_prompts_are_judged_at_as_many_points_as_are_wanted_and_the_logged_prompt_is_asked_once(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    """In this market all agents of an hour see the same: an hour has one decision point."""
    async with open_arena(played, small(tmp_path, model), PromptMaterial()) as arena:
        plain = {one.point: one.score for one in await arena.judges.judge(parse("You trade.\n"))}
        right = {one.point: one.score for one in await arena.judges.judge(parse("You trade: follow it.\n"))}
        await arena.judges.judge(parse("You trade.\n"))
    assert len(plain) == 3
    assert all(right[point] > plain[point] for point in plain)
    assert [model.systems.count(one) for one in (LOGGED, "You trade.", "You trade: follow it.")] == [3, 3, 3]


async def test_the_prompt_of_a_role_is_judged_at_decisions_of_that_role_alone(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    settings = small(tmp_path, model, prompt_role="market maker")
    async with open_arena(played, settings, PromptMaterial()) as arena:
        assert isinstance(arena.judges, TrialJudges)
        scores = await arena.judges.judge(parse("You trade: follow it.\n"))
        whose = {own.trajectory_id: own.role for one in arena.judges.windows for own in one.usable}
    assert len(scores) == 3
    assert {whose[one.point.split("/")[0]] for one in scores} == {"market maker"}
    assert all(one.score > 0 for one in scores), "elsewhere the logged prompt stands on both sides"
    nobody = small(tmp_path, model, prompt_role="baker")
    with pytest.raises(NotEnoughData, match=r"no decision of the role 'baker' in the windows before"):
        await training_windows(played, nobody, end_of(WINDOWS[-1], 1))


async def test_the_games_values_are_read_from_what_was_logged_with_another_prompt(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    settings = small(tmp_path, model)
    await kept(played, settings, "Trade the {what}.\n")
    async with open_arena(played, settings, PromptMaterial()) as arena:
        assert len(await arena.judges.judge(parse("Trade {what}: follow it.\n"))) == 3
    assert "Trade news: follow it." in model.systems


async def test_the_gate_reads_values_by_every_prompt_that_is_kept(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    """The game's own prompt was logged; the candidate, of the same variables, says it in other words."""
    settings = small(tmp_path, model, action="gate", eval_windows=2, eval_points=1)
    own = await kept(played, settings, "Trade the {what}.\n")
    better = await kept(played, settings, "Trade {what}: follow it.\n")
    done = await gate_prompt(played, settings, better, PromptMaterial(), say=lambda line: None)
    assert done.evaluation.figures
    assert own.prompt_id != better.prompt_id
    assert "Trade news: follow it." in model.systems


async def test_before_the_first_training_the_base_model_replies(database: Database) -> None:
    settings = ModelSettings()
    base = Checkpoint("hindsight", 0, settings.base_model, "cpu", settings.base_model)
    assert await replying_model(database, settings) == base
