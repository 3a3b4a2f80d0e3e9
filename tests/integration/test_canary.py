"""A canary is finished, rolled back or left alone by how its agents did in the windows since."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.window_ids import end_of, start_of, window_of
from tests.builders import WINDOW, insert_window, recorder_steps
from tests.builders_promotion import insert_checkpoint
from trainer.cli import promote as promote_command
from trainer.cli import train_mmo as train_command
from trainer.ledger.releases import Promotion, running_canary, serving
from trainer.ledger.states import PromotionState
from trainer.promote.canary import CanaryRuling, CanaryWindow, CanaryWindows, decide, settle_canary, windows_since
from trainer.promote.publish import publish
from trainer.types import Serving

HOURS = [window_of(start_of(WINDOW) + timedelta(hours=hour)) for hour in range(1, 13)]
AFTER = end_of(HOURS[-1], 1) + timedelta(hours=1)


def _since(differences: list[float], untried: int = 0) -> CanaryWindows:
    windows = [CanaryWindow(f"window {number}", 0.5 + gain, 0.5) for number, gain in enumerate(differences)]
    return CanaryWindows(tuple(windows), "judge score", untried)


@pytest.mark.parametrize(
    ("differences", "ruling"),
    [
        ([0.2, 0.1, 0.15] * 4, CanaryRuling.FINISH),
        ([0.1, -0.1] * 100, CanaryRuling.FINISH),
        ([0.0] * 8, CanaryRuling.FINISH),
        ([0.1, -0.05] * 5, CanaryRuling.WAIT),
        ([-0.2, -0.1, -0.15] * 4, CanaryRuling.ROLL_BACK),
        ([-0.3, 0.2] * 6, CanaryRuling.WAIT),
        ([-0.9] * 5, CanaryRuling.WAIT),
    ],
)
def test_not_worse_is_finished_clearly_worse_is_rolled_back_the_rest_waits(
    differences: list[float], ruling: CanaryRuling
) -> None:
    decision = decide(_since(differences))
    assert decision.ruling is ruling
    assert "windows" in decision.reason


@pytest.mark.parametrize("differences", [[], [0.1, -0.05] * 5])
def test_waiting_says_that_agents_did_not_use_the_canary(differences: list[float]) -> None:
    assert "in 7 windows the canary's agents did not use it" in decide(_since(differences, untried=7)).reason
    assert "did not use it" not in decide(_since(differences)).reason


def test_waiting_says_what_would_decide() -> None:
    needed = re.search(r"about (\d+) windows would decide", decide(_since([0.1, -0.1] * 20)).reason)
    assert needed is not None
    enough = int(needed[1]) // 2 + 1
    assert decide(_since([0.1, -0.1] * enough)).ruling is CanaryRuling.FINISH


async def _start(database: Database, home: Path) -> tuple[Promotion, set[str]]:
    await insert_window(database.pool, agents=6)
    for step in (1, 2):
        point = await insert_checkpoint(database, step, backend="cpu", location=home)
        trial = await publish(
            database,
            home,
            point.as_release(),
            Serving("http://127.0.0.1:1/v1", point.name),
            reason="better",
            canary=0.34 if step == 2 else None,
        )
    marked = await database.pool.fetch("SELECT agent_id FROM hindsight.canary_agents")
    return trial, {row["agent_id"] for row in marked}


def _steps(model: str, pnl: float) -> str:
    steps = recorder_steps(pnl=pnl)
    for step in steps:
        for call in step["llmCalls"]:
            call["model"] = model
    return json.dumps(steps)


async def _play(
    database: Database, agents: set[str], *, canary: float, others: float, canary_answers: str = "hindsight@step2"
) -> None:
    for number, window_id in enumerate(HOURS):
        ids = await insert_window(database.pool, window_id, agents=6)
        rows = await database.pool.fetch('SELECT id, "agentId" FROM trajectories WHERE "trajectoryId" = ANY($1)', ids)
        for row in rows:
            model, pnl = (canary_answers, canary) if row["agentId"] in agents else ("hindsight@step1", others)
            await database.pool.execute(
                'UPDATE trajectories SET "stepsJson" = $2, "finalPnL" = NULL WHERE id = $1',
                *(row["id"], _steps(model, pnl + number % 3)),
            )


async def test_agents_that_lose_money_end_their_canary_at_once(database: Database, tmp_path: Path) -> None:
    trial, agents = await _start(database, tmp_path)
    assert trial.canary_after == WINDOW
    assert len(agents) == 2
    await _play(database, agents, canary=-50.0, others=5.0)
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is CanaryRuling.ROLL_BACK
    assert decision.measure == "return on the balance"
    assert await running_canary(database, "hindsight") is None
    now = await serving(database, "hindsight")
    assert now is not None
    assert now.checkpoint.step == 1
    ended = await database.pool.fetchrow("SELECT state, outcome FROM hindsight.promotions WHERE step = 2")
    assert ended is not None
    assert ended["state"] == PromotionState.ROLLED_BACK
    assert "clearly worse" in ended["outcome"]


async def test_agents_that_do_not_do_worse_finish_it(
    database: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, agents = await _start(database, tmp_path)
    await _play(database, agents, canary=9.0, others=5.0)
    flags = ["--database-url", database_url, "--home", str(tmp_path), "--until", AFTER.isoformat()]
    assert await asyncio.to_thread(promote_command.main, ["--finish", *flags]) == 0
    assert "Finished: return on the balance of the canary's agents" in capfd.readouterr().out
    now = await serving(database, "hindsight")
    assert now is not None
    assert now.checkpoint.step == 2


@pytest.mark.parametrize("answered", ["hindsight@step1", "hindsight", "gpt-5-mini"])
async def test_agents_whose_log_does_not_name_the_canary_decide_nothing(
    database: Database, tmp_path: Path, answered: str
) -> None:
    trial, agents = await _start(database, tmp_path)
    await _play(database, agents, canary=-50.0, others=5.0, canary_answers=answered)
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is CanaryRuling.WAIT
    assert f"in {len(HOURS)} windows the canary's agents did not use it" in decision.reason
    assert "send their agent id as `user`" in decision.reason
    assert await running_canary(database, "hindsight") == trial


async def test_windows_before_the_canary_do_not_count(database: Database, tmp_path: Path) -> None:
    trial, _ = await _start(database, tmp_path)
    assert await windows_since(database, trial, AFTER) == CanaryWindows((), "return on the balance")
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is CanaryRuling.WAIT
    assert await running_canary(database, "hindsight") == trial


async def test_the_judges_scores_come_before_money_where_there_are_enough(database: Database, tmp_path: Path) -> None:
    trial, agents = await _start(database, tmp_path)
    await _play(database, agents, canary=-50.0, others=5.0)
    await database.pool.execute(
        'UPDATE trajectories SET "aiJudgeReward" = CASE WHEN "agentId" = ANY($1) THEN 0.8 ELSE 0.4 END', list(agents)
    )
    since = await windows_since(database, trial, AFTER)
    assert since.measure == "judge score"
    assert len(since.compared) == len(HOURS)
    assert {(round(window.canary, 3), round(window.others, 3)) for window in since.compared} == {(0.8, 0.4)}


def test_training_refuses_a_canary_that_it_could_not_start_before_it_opens_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-key-for-tests")
    nowhere = ["--database-url", "postgresql://nobody@127.0.0.1:1/none", "--home", str(tmp_path)]
    assert train_command.main([*nowhere, "--backend", "serverless", "--canary", "0.1"]) == 2
    assert "the serverless backend gives every agent the same" in " ".join(capfd.readouterr().err.split())
