"""Evaluation and promotion as the commands do it: simulated windows in Postgres, checkpoints behind a real endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.window_ids import end_of, start_of, windows_from
from tests.builders_evaluation import make_checkpoint
from tests.builders_promotion import insert_checkpoint
from tests.fakes.checkpoint_server import CheckpointServer, against_the_news, babbles, follows_the_news
from trainer import pipeline
from trainer.cli import evaluate as evaluate_command
from trainer.cli import promote as promote_command
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.evaluate.evaluation import evaluation_windows
from trainer.evidence import Evaluation, Role, Ruling
from trainer.inference.divergence import SampledReplies
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import latest_evaluation, leaked_windows
from trainer.ledger.releases import history, serving
from trainer.pipeline import consider, evaluate
from trainer.promote.publish import publish, roll_back
from trainer.types import Checkpoint
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows

# A simulated market whose clock is ahead of ours.
MARKET = Market(7, luck=0.0)
TRAINED = list(windows_from("2099-03-02T00:00", 5))
EMBARGO = list(windows_from("2099-03-02T05:00", 3))
WINDOWS = [
    window
    for window in windows_from("2099-03-02T08:00", 60)
    if MARKET.hour(window).tickers[0].direction  # hours in which reading the news matters
][:20]
"""After all that was trained and the embargo of three hours."""
SEVERAL_LIVES = {":step0": babbles, ":step1": against_the_news, ":step2": follows_the_news}


@pytest.fixture
def checkpoints() -> Iterator[CheckpointServer]:
    with CheckpointServer(SEVERAL_LIVES) as server:
        yield server


@pytest.fixture
async def played(database: Database, tmp_path: Path) -> Database:
    """Windows of the simulated market, and two checkpoints that were trained on the first of them."""
    windows = TRAINED + EMBARGO + WINDOWS
    await play_windows(database, tmp_path / "spool", MARKET, scripted_cast(3, 7), windows, write_together=50)
    for step in (1, 2):
        await insert_checkpoint(database, step, windows=TRAINED)
    return database


def _settings(home: Path, server: CheckpointServer, **more: Any) -> TrainSettings:
    key = SecretStr("a-key-for-tests")
    known = {
        "home": home,
        "wandb_api_key": key,
        "wandb_base_url": server.base_url,
        "eval_samples": 2,
        "eval_questions": 8,
    }
    return settings_from(TrainSettings, **(known | more))


async def test_a_better_checkpoint_is_promoted_with_all_its_evidence(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path
) -> None:
    candidate = await find_checkpoint(played, "hindsight", 2)
    considered = await consider(played, _settings(tmp_path, checkpoints), candidate.as_release(), run_id="run-1")

    assert considered.decision.ruling is Ruling.PROMOTE, considered.decision
    assert considered.refusal() is None
    assert "not measured: KL from the base model" in considered.decision.sentence, "it runs on another machine"
    evaluation = considered.evaluation
    figures = {one.role: one for one in evaluation.figures}
    assert set(figures) == {Role.CANDIDATE, Role.INCUMBENT, Role.GREEDY, Role.RANDOM, Role.BASELINE}
    assert figures[Role.CANDIDATE].error_rate.mean == 0.0
    assert figures[Role.INCUMBENT].error_rate.mean == 1.0, "the untrained base model stands in for the incumbent"
    pnl = figures[Role.CANDIDATE].pnl
    assert pnl is not None
    assert pnl.mean > 0
    assert figures[Role.BASELINE].pnl is not None
    assert {window.window_id for window in evaluation.windows} == set(WINDOWS)
    assert evaluation.best is not None
    assert "offline judge" in evaluation.best.replies[0].explanation
    assert await latest_evaluation(played, "hindsight", 2) == evaluation
    row = await played.pool.fetchrow("SELECT * FROM hindsight.evaluations")
    assert row is not None
    assert (row["ruling"], row["run_id"], row["look"]) == ("promote", "run-1", 1)
    assert row["harm_chance"] == pytest.approx(0.05 / 26), "a part of the year's budget"
    assert 0 < row["expected_gain"] <= evaluation.score_difference.mean
    now = await serving(played, "hindsight")
    assert now == considered.promotion
    assert now is not None
    assert (now.base_url, now.served_model) == (checkpoints.base_url, candidate.location)


async def test_a_worse_checkpoint_is_refused_and_the_agents_keep_what_they_have(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, checkpoints)
    better, worse = [await find_checkpoint(played, "hindsight", step) for step in (2, 1)]
    await publish(played, tmp_path, better.as_release(), better.served_at(settings.promotion), reason="better")
    considered = await consider(played, settings, worse.as_release(), run_id=None)

    assert considered.decision.ruling is Ruling.REFUSE
    asked = {one.role for one in considered.evaluation.figures}
    assert asked == set(Role) - {Role.NO_LESSONS, Role.RANDOM_LESSONS, Role.RANDOM_MUTATION}, (
        "now there is a base beside it"
    )
    refusal = considered.refusal()
    assert refusal is not None
    assert refusal.exit_code == 5
    assert "hindsight@step1 is not promoted (refused)" in str(refusal)
    now = await serving(played, "hindsight")
    assert now is not None
    assert now.checkpoint.step == 2
    assert len(await history(played, "hindsight")) == 1


async def test_a_checkpoint_too_far_from_the_base_model_is_refused_whatever_it_gained(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[SampledReplies] = []

    async def measure_kl(replies: Sequence[SampledReplies]) -> float:
        answered.extend(replies)
        return 3.5

    monkeypatch.setattr(pipeline, "kl_meter", lambda *_: measure_kl)
    candidate = await find_checkpoint(played, "hindsight", 2)
    considered = await consider(played, _settings(tmp_path, checkpoints), candidate.as_release(), run_id=None)
    gain = considered.evaluation.score_difference
    assert gain.low is not None
    assert gain.low > 0
    assert considered.decision.ruling is Ruling.REFUSE
    assert "KL from the base model 3.5 exceeds the limit of 2" in considered.decision.sentence
    assert len(answered) == considered.evaluation.decision_points
    assert {len(one.replies) for one in answered} == {2}, "the candidate's own"
    assert await serving(played, "hindsight") is None


async def test_a_rollback_during_the_evaluation_is_not_overwritten(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(tmp_path, checkpoints)
    bad, better = [await find_checkpoint(played, "hindsight", step) for step in (1, 2)]
    await publish(played, tmp_path, bad.as_release(), bad.served_at(settings.promotion), reason="a mistake")

    async def evaluate_slowly(*arguments: Any, **more: Any) -> Evaluation:
        measured = await evaluate(*arguments, **more)
        to = partial(Checkpoint.served_at, addresses=settings.promotion)
        await roll_back(played, tmp_path, "hindsight", to, step=None, reason="the agents lose money")
        return measured

    monkeypatch.setattr(pipeline, "evaluate", evaluate_slowly)
    considered = await consider(played, settings, better.as_release(), run_id=None)

    assert considered.evaluation.incumbent == bad.as_release()
    assert (considered.decision.ruling, considered.promotion) == (Ruling.UNDECIDED, None)
    refusal = considered.refusal()
    assert refusal is not None
    assert "(undecided): the incumbent changed during the evaluation; evaluate again" in str(refusal)
    [row] = await played.pool.fetch("SELECT ruling, look, harm_chance > 0 AS spent FROM hindsight.evaluations")
    assert tuple(row) == ("undecided", 1, True), "the look was made, so it is paid for"
    now = await serving(played, "hindsight")
    assert now is not None
    assert now.checkpoint.step == 0


async def test_no_promote_evaluates_and_leaves_it_at_that(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, checkpoints, promote=False)
    considered = await consider(
        played, settings, (await find_checkpoint(played, "hindsight", 2)).as_release(), run_id=None
    )
    assert considered.decision.ruling is Ruling.PROMOTE
    assert considered.promotion is None
    assert await serving(played, "hindsight") is None


async def test_only_windows_after_all_that_was_trained_and_an_embargo_are_read_the_newest_first(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path
) -> None:
    settings = _settings(tmp_path, checkpoints, eval_windows=5)
    now = await clock(played, settings.windows.until)
    candidate, rival = [make_checkpoint(1, model).as_release() for model in ("hindsight", "rival")]

    async def read_windows() -> list[str]:
        windows = await evaluation_windows(played, settings.evaluation, settings.windows, candidate, rival, now=now)
        return [checked.window.window_id for checked in windows]

    def first_after(trained: str) -> datetime:
        return end_of(trained, 1) + timedelta(hours=3)

    def left_after(trained: str) -> list[str]:
        return [window_id for window_id in WINDOWS if start_of(window_id) >= first_after(trained)][-5:]

    assert now >= end_of(WINDOWS[-1], 1)
    assert await read_windows() == WINDOWS[-5:]

    own, rivals = WINDOWS[-7], WINDOWS[-5]
    assert 5 > len(left_after(own)) > len(left_after(rivals)) > 0, "or this test shows nothing"
    await insert_checkpoint(played, 3, windows=[own])
    assert await read_windows() == left_after(own), "after what a later step was trained on, and three hours"
    await insert_checkpoint(played, 1, run_id="run-2", model="rival", windows=[rivals])
    assert await read_windows() == left_after(rivals), "nor one near what the other model was trained on"
    await insert_checkpoint(played, 4, run_id="run-3", windows=[WINDOWS[-1]])
    since = f"{first_after(WINDOWS[-1]):%Y-%m-%d %H:%M}"
    with pytest.raises(NotEnoughData, match=f"no usable window to evaluate on since {since}"):
        await read_windows()


async def test_a_window_that_was_ruled_on_and_is_in_the_candidates_own_past_is_a_leak(
    played: Database, checkpoints: CheckpointServer, tmp_path: Path
) -> None:
    candidate = (await find_checkpoint(played, "hindsight", 2)).as_release()
    await consider(played, _settings(tmp_path, checkpoints), candidate, run_id=None)
    await insert_checkpoint(played, 3, windows=[WINDOWS[-1]])
    assert await leaked_windows(played) == set(), "trained after the ruling"
    await played.pool.execute("UPDATE hindsight.batches SET step = 2 WHERE step = 3")
    assert await leaked_windows(played) == {WINDOWS[-1]}


async def test_a_database_without_later_windows_is_too_little(
    database: Database, checkpoints: CheckpointServer, tmp_path: Path
) -> None:
    point = await insert_checkpoint(database, 1)
    with pytest.raises(NotEnoughData, match="no usable window to evaluate on"):
        await evaluate(database, _settings(tmp_path, checkpoints), point.as_release(), None, run_id=None)


# The commands


def _flags(url: str, home: Path) -> list[str]:
    return ["--database-url", url, "--home", str(home)]


async def _run(main: Any, *arguments: str) -> int:
    """A command in a thread of its own, as it has its own event loop."""
    return int(await asyncio.to_thread(main, list(arguments)))


async def test_the_commands_evaluate_promote_list_and_roll_back(
    played: Database,
    database_url: str,
    checkpoints: CheckpointServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "a-key-for-tests")
    monkeypatch.setenv("WANDB_TRAINING_BASE_URL", checkpoints.base_url)
    monkeypatch.setenv("HINDSIGHT_EVAL_QUESTIONS", "8")
    flags = _flags(database_url, tmp_path)

    assert await _run(promote_command.main, "2", *flags) == 3
    assert "run `evaluate.py 2` first" in capfd.readouterr().err

    await insert_checkpoint(played, 1, run_id="run-2", model="rival", windows=TRAINED)
    for other in ("1", "rival@step1", "rival@step0"):
        assert await _run(evaluate_command.main, "2", other, *flags, "--eval-samples", "1", "--eval-windows", "1") == 0
        assert "Gate:" not in capfd.readouterr().out, "it is no matter for the gate"
        assert await _run(promote_command.main, "2", *flags) == 3, f"no evidence against the base model: {other}"

    assert await _run(evaluate_command.main, "2", *flags, "--json", "--eval-samples", "2") == 0
    told = json.loads(capfd.readouterr().out)
    assert told["ruling"] == "promote"
    assert told["evaluation"]["candidate"]["step"] == 2
    assert told["evaluation"]["reading"]["gain"]["mean"] == 1.0, "the base babbles, the candidate reads"
    assert told["evaluation"]["narrowing"]["candidate"] == 1.0

    assert await _run(promote_command.main, "2", *flags) == 0
    out = capfd.readouterr().out
    assert "All agents use hindsight@step2." in out
    assert checkpoints.base_url in out
    assert "wandb-artifact:///team/game/hindsight:step2" in out

    assert await _run(evaluate_command.main, "1", *flags, "--eval-samples", "2") == 0
    out = capfd.readouterr().out
    assert "Gate: undecided" in out, "its windows have served the ruling on step 2"
    assert "script that follows the news" in out
    assert "random valid action" in out
    assert "Gain over the stronger base (greedy) on 8 questions with unseen words: +0.00" in out
    assert "the days after (" in out
    assert await _run(promote_command.main, "1", *flags) == 5
    assert "is not promoted (undecided): its windows served another evaluation" in capfd.readouterr().err
    assert await _run(promote_command.main, "1", *flags, "--force") == 2
    assert "--force needs --reason" in capfd.readouterr().err
    assert await _run(promote_command.main, "1", *flags, "--force", "--reason", "an experiment") == 0
    capfd.readouterr()

    assert await _run(promote_command.main, "--rollback", "2", *flags, "--reason", "as expected", "--json") == 0
    back = json.loads(capfd.readouterr().out)
    assert (back["checkpoint"]["step"], back["kind"], back["reason"]) == (2, "rollback", "as expected")
    forced = [past for past in await history(played, "hindsight") if past.forced]
    assert [(past.checkpoint.step, past.reason, past.outcome) for past in forced] == [
        (1, "an experiment", "as expected")
    ]

    assert await _run(promote_command.main, "--list", *flags) == 0
    listed = capfd.readouterr().out
    assert "serving" in listed
    assert "rolled_back" in listed
    assert await _run(promote_command.main, "--list", *flags, "--json") == 0
    shown = json.loads(capfd.readouterr().out)["checkpoints"]
    assert [(one["checkpoint"]["step"], one["state"]) for one in shown] == [(2, "serving"), (1, "rolled_back")]

    assert await _run(promote_command.main, "--rollback", "--list", *flags) == 2
    assert await _run(promote_command.main, "--finish", *flags) == 2
    assert await _run(promote_command.main, "nonsense", *flags) == 2
    assert "nonsense" in capfd.readouterr().err
