"""A canary is finished, rolled back or left alone by how its agents did in the windows since."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.window_ids import end_of, start_of, window_of
from tests.builders import WINDOW, insert_window, recorder_steps
from tests.builders_promotion import insert_checkpoint
from trainer.backends.serving import Serving
from trainer.cli import promote as promote_command
from trainer.promote import publish
from trainer.promotion.canary import CanaryRuling, CanaryWindow, decide, windows_since
from trainer.promotion.promotions import Promotion, PromotionState, running_canary, serving
from trainer.promotion.release import settle_canary

HOURS = [window_of(start_of(WINDOW) + timedelta(hours=hour)) for hour in range(1, 13)]
AFTER = end_of(HOURS[-1], 1) + timedelta(hours=1)


def _windows(differences: list[float]) -> list[CanaryWindow]:
    return [CanaryWindow(f"2026-11-02T{hour:02}:00", 0.5 + gain, 0.5) for hour, gain in enumerate(differences)]


@pytest.mark.parametrize(
    ("differences", "ruling"),
    [
        ([0.1, -0.05] * 5, CanaryRuling.FINISH),
        ([0.0] * 8, CanaryRuling.FINISH),
        ([-0.2, -0.1, -0.15] * 4, CanaryRuling.ROLL_BACK),
        ([-0.3, 0.2] * 6, CanaryRuling.WAIT),
        ([-0.9] * 5, CanaryRuling.WAIT),
    ],
)
def test_not_worse_is_finished_clearly_worse_is_rolled_back_the_rest_waits(
    differences: list[float], ruling: CanaryRuling
) -> None:
    decision = decide(_windows(differences), "judge score")
    assert decision.ruling is ruling
    assert "windows" in decision.reason


async def _start(database: Database, home: Path) -> tuple[Promotion, set[str]]:
    await insert_window(database.pool, agents=6)
    for step in (1, 2):
        point = await insert_checkpoint(database, step)
        trial = await publish(
            database,
            home,
            point,
            Serving("http://127.0.0.1:1/v1", point.name),
            reason="better",
            canary=0.34 if step == 2 else None,
        )
    marked = await database.pool.fetch("SELECT agent_id FROM hindsight.canary_agents")
    return trial, {row["agent_id"] for row in marked}


async def _play(database: Database, agents: set[str], *, canary: float, others: float) -> None:
    for number, window_id in enumerate(HOURS):
        ids = await insert_window(database.pool, window_id, agents=6)
        rows = await database.pool.fetch('SELECT id, "agentId" FROM trajectories WHERE "trajectoryId" = ANY($1)', ids)
        for row in rows:
            pnl = (canary if row["agentId"] in agents else others) + number % 3
            await database.pool.execute(
                'UPDATE trajectories SET "stepsJson" = $2, "finalPnL" = NULL WHERE id = $1',
                *(row["id"], json.dumps(recorder_steps(pnl=pnl))),
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


async def test_windows_before_the_canary_do_not_count(database: Database, tmp_path: Path) -> None:
    trial, _ = await _start(database, tmp_path)
    assert await windows_since(database, trial, AFTER) == ([], "return on the balance")
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
    windows, measure = await windows_since(database, trial, AFTER)
    assert measure == "judge score"
    assert len(windows) == len(HOURS)
    assert {(round(window.canary, 3), round(window.others, 3)) for window in windows} == {(0.8, 0.4)}
