"""From a checkpoint back to everything that made it, and from a window forward."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.models import WindowOutcomes
from data_bridge.quality import Exclusion, Reason
from tests.builders import NOW, WINDOW, hours_before, insert_window, make_trajectory
from tests.builders_evaluation import make_evaluation
from tests.builders_ledger import make_record
from trainer.cli import lineage as lineage_command
from trainer.evidence import WindowFigures
from trainer.judge.outcome import IDENTITY
from trainer.ledger.evaluations import save
from trainer.ledger.lineage import walk_back, walk_forward
from trainer.ledger.model_lock import hold
from trainer.ledger.runs import Ledger
from trainer.ledger.states import RunState
from trainer.ledger.verdicts import JudgedTrajectory, Judgement, JudgeQuestion, open_verdicts
from trainer.promote.publish import publish
from trainer.types import Checkpoint, Group, PlannedGroup, PlannedWindow, RunPlan, Serving, StepResult

NEXT = hours_before(number=3)[0]


@pytest.fixture
async def trained(database: Database) -> Database:
    """Two steps of one run, each of one window, as the trainer's own ledger writes them.

    The second batch was prepared for the base model while the first was still trained, as a remote backend allows.
    """
    ledger = Ledger(database)
    records = []
    for step, window_id in ((1, WINDOW), (2, NEXT)):
        ids = await insert_window(database.pool, window_id, agents=3)
        records.append(make_record(ids, batch_id=f"batch-{step}", number=step, window_id=window_id))
    windows = tuple(
        PlannedWindow(
            group.window_id, 1, (PlannedGroup(group.group_id, tuple(v.trajectory_id for v in group.verdicts)),)
        )
        for record in records
        for group in record.groups
    )
    left_out = Exclusion("t-left-out", "agent-9", WINDOW, Reason.DROPOUT)
    await ledger.start_run(
        "run-1",
        model="hindsight",
        base_model="tiny",
        backend="fake",
        fingerprint="same",
        settings={"learning_rate": 0.001, "code_version": "0.1.0 (abc)"},
        plan=RunPlan(windows, (left_out,), 0.25, 7),
    )
    async with hold(database, "hindsight") as lock, open_verdicts(database, "run-1") as verdicts:
        for step, record in enumerate(records, start=1):
            [group] = record.groups
            judged = tuple(
                JudgedTrajectory(f"hash of {one.trajectory_id}", one.trajectory_id, one.score, one.explanation)
                for one in group.verdicts
            )
            asked = Group(group.group_id, group.window_id, (make_trajectory(),), WindowOutcomes())
            key = JudgeQuestion(group.verdict_key, step, asked.window_id, asked.group_id, IDENTITY)
            await verdicts.store(key, Judgement(judged, prompt_hash=f"prompt-{step}"))
            await ledger.batch_prepared(lock, record)
            point = Checkpoint("hindsight", step, "tiny", "fake", f"/checkpoints/{step:04}")
            await ledger.batch_trained(lock, record, StepResult(point, 15, {}), {"reward": 0.4, "kl": 0.01 * step})
    return database


async def test_a_checkpoint_is_traced_to_windows_verdicts_words_rubric_settings_code_and_data(
    trained: Database,
) -> None:
    [newest] = await walk_back(trained, "hindsight", 2)
    assert (newest.run_id, newest.batch_id) == ("run-1", "batch-2")
    assert newest.window_ids == (NEXT,)
    assert newest.code_version == "0.1.0 (abc)"
    assert newest.settings == {"learning_rate": 0.001}
    assert newest.metrics["kl"] == 0.02
    [group] = newest.groups
    assert (group.judge, group.rubric, group.rubric_version) == ("outcome", "outcome", "1")
    assert set(group.prompt_hashes) == {"prompt-1", "prompt-2"}
    assert [one.agent_id for one in group.trajectories] == ["agent-1", "agent-2", "agent-3"]
    best = group.trajectories[-1]
    assert best.explanation == "because"
    assert best.score == pytest.approx(2 / 3)
    assert best.content_hash == f"hash of {best.trajectory_id}"
    assert best.has_tokens


async def test_a_batch_prepared_ahead_comes_from_the_checkpoint_before_its_own(trained: Database) -> None:
    [newest] = await walk_back(trained, "hindsight", 2)
    assert (newest.policy_step, newest.parent_step) == (0, 1)


async def test_each_checkpoint_names_the_settings_it_was_trained_with_also_in_a_run_that_was_taken_up(
    trained: Database,
) -> None:
    ledger = Ledger(trained)
    await ledger.finish_run("run-1", RunState.FAILED, error="the run is collapsing")
    slower = {"learning_rate": 0.00001, "code_version": "0.1.0 (def)"}
    await ledger.resume_run("run-1", slower, RunPlan((), (), 0.0, 0))
    async with hold(trained, "hindsight") as lock:
        record = make_record(["t-1", "t-2"], batch_id="batch-3", number=3)
        await ledger.batch_prepared(lock, record)
        point = Checkpoint("hindsight", 3, "tiny", "fake", "/checkpoints/0003")
        await ledger.batch_trained(lock, record, StepResult(point, 10, {}), {})

    found = await walk_back(trained, "hindsight", 3, depth=0)
    assert [one.settings["learning_rate"] for one in found] == [0.00001, 0.001, 0.001]
    assert [one.code_version for one in found] == ["0.1.0 (def)", "0.1.0 (abc)", "0.1.0 (abc)"]


async def test_all_the_way_back_ends_at_the_base_model(trained: Database) -> None:
    assert [one.checkpoint.step for one in await walk_back(trained, "hindsight", 2, depth=0)] == [2, 1]
    assert await walk_back(trained, "hindsight", 0, depth=0) == []
    with pytest.raises(ConfigurationError, match="the newest is step 2"):
        await walk_back(trained, "hindsight", 7)


async def test_a_window_is_followed_to_what_it_trained_and_what_agents_use(trained: Database, tmp_path: Path) -> None:
    story = await walk_forward(trained, f"{WINDOW}:00Z")
    [step] = story.trained
    assert (step.checkpoint.step, step.trajectories, step.later_steps, step.state) == (1, 3, 1, None)
    assert story.excluded == {"dropout": 1}
    point = Checkpoint("hindsight", 2, "tiny", "fake", "/checkpoints/0002")
    await publish(trained, tmp_path, point.as_release(), Serving("http://127.0.0.1:1/v1", point.name), reason="better")
    [step] = (await walk_forward(trained, WINDOW)).trained
    assert step.state == "serving", "what agents use builds on it"


async def test_a_held_out_window_trained_nothing_and_says_who_was_evaluated_on_it(trained: Database) -> None:
    [held_out] = hours_before(NOW + timedelta(hours=4), number=1)
    await save(trained, replace(make_evaluation(2), windows=(WindowFigures(held_out, {}, {}),)))
    story = await walk_forward(trained, held_out)
    assert story.trained == ()
    assert story.evaluated == ("hindsight@step2",)


async def test_a_window_that_no_run_has_seen_is_said_so(database: Database) -> None:
    with pytest.raises(NotEnoughData, match="check_windows"):
        await walk_forward(database, WINDOW)


async def test_the_command_tells_it_in_words_and_in_json(
    trained: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--database-url", database_url, "--home", str(tmp_path)]

    async def run(*arguments: str) -> str:
        assert await asyncio.to_thread(lineage_command.main, [*arguments, *flags]) == 0
        return capfd.readouterr().out

    told = await run("hindsight@step2")
    for part in (
        "hindsight@step2",
        NEXT,
        "because",
        "0.1.0 (abc)",
        "learning_rate=0.001",
        "Parent: hindsight@step1",
    ):
        assert part in told
    lineage = json.loads(await run("2", "--depth", "0", "--json"))["lineage"]
    assert [one["checkpoint"]["step"] for one in lineage] == [2, 1]
    assert "trained hindsight@step1: 3 trajectories" in await run("--window", WINDOW)
    assert json.loads(await run("--window", WINDOW, "--json"))["trained"][0]["batch_id"] == "batch-1"
    assert "untrained base model" in await run("0")
