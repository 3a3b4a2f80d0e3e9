"""A canary is finished, rolled back or left alone by our own verdicts on its agents, with nobody asking."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import numpy as np
import pytest

from data_bridge.database import Database
from data_bridge.facts import record_facts
from data_bridge.models import Fact
from tests.builders import WINDOW
from tests.builders_canary import AFTER, AGENTS, BEFORE, SINCE, judge, level, play, played, start_canary
from trainer.cli import judge_windows as judge_command
from trainer.cli import promote as promote_command
from trainer.cli import schedule_training as schedule_command
from trainer.cli import train_mmo as train_command
from trainer.ledger.releases import running_canary, serving
from trainer.ledger.states import PromotionState
from trainer.promote.canary import (
    LOOKS,
    NOTHING,
    CanaryEvidence,
    CanaryRuling,
    decide,
    evidence_of,
    settle_canary,
)

ROOT = Path(__file__).parents[2]


def worse_by(loss: float, canary: frozenset[str]) -> object:
    return lambda agent, window: level(agent, window) - (loss if agent in canary else 0.0)


async def _serving_step(database: Database) -> int:
    now = await serving(database, "hindsight")
    assert now is not None
    return now.checkpoint.step


async def test_agents_that_are_judged_worse_than_before_end_their_canary(database: Database, tmp_path: Path) -> None:
    trial, agents = await start_canary(database, tmp_path)
    assert trial.canary_after == WINDOW
    assert len(agents) == 3
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, worse_by(0.3, agents))  # type: ignore[arg-type]
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is CanaryRuling.ROLL_BACK
    assert await running_canary(database, "hindsight") is None
    assert await _serving_step(database) == 1
    ended = await database.pool.fetchrow("SELECT state, outcome FROM hindsight.promotions WHERE step = 2")
    assert ended is not None
    assert ended["state"] == PromotionState.ROLLED_BACK
    assert "judge score of 3 agents with the canary minus that of 9 without" in ended["outcome"]
    assert "12 windows): clearly worse" in ended["outcome"]


async def test_agents_that_do_as_well_as_before_finish_it(
    database: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, worse_by(-0.02, agents))  # type: ignore[arg-type]
    flags = ["--database-url", database_url, "--home", str(tmp_path), "--until", AFTER.isoformat()]
    assert await asyncio.to_thread(promote_command.main, ["--finish", *flags]) == 0
    assert "Finished: judge score of 3 agents with the canary" in capfd.readouterr().out
    assert await _serving_step(database) == 2


async def test_the_scheduler_settles_it_with_no_command(
    database: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a database where nothing is ready to be trained."""
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, worse_by(-0.02, agents))  # type: ignore[arg-type]
    flags = ["--database-url", database_url, "--home", str(tmp_path), "--until", AFTER.isoformat()]
    code = await asyncio.to_thread(
        schedule_command.main, ["--once", "--command", "true", "--min-windows", "9999", *flags]
    )
    assert code == 3
    assert "Canary hindsight@step2: finish. judge score of 3 agents" in capfd.readouterr().out
    assert await _serving_step(database) == 2


async def test_the_scheduler_in_the_foreground_settles_it_when_it_starts(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, worse_by(0.3, agents))  # type: ignore[arg-type]
    environment = os.environ | {"DATABASE_URL": database_url, "HINDSIGHT_HOME": str(tmp_path)}
    flags = ["--until", AFTER.isoformat(), "--command", "true"]
    scheduler = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "scripts" / "schedule_training.py"), *flags, env=environment, stdout=PIPE
    )
    assert scheduler.stdout is not None
    line = await scheduler.stdout.readline()
    scheduler.terminate()
    assert await scheduler.wait() == 130
    assert line.startswith(b"Canary hindsight@step2: roll back. judge score of 3 agents")
    assert await running_canary(database, "hindsight") is None


@pytest.mark.parametrize(("worth", "never"), [(-10.0, CanaryRuling.FINISH), (10.0, CanaryRuling.ROLL_BACK)])
async def test_in_another_world_it_goes_by_the_worlds_measure_and_not_by_what_rows_claim(
    database: Database,
    database_url: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    worth: float,
    never: CanaryRuling,
) -> None:
    """The rows claim the opposite: a large profit where the facts say that the canary's agents lost, or a loss.

    Which agents are the canary's is drawn at random, so twelve windows decide or wait; but never the other way.
    """
    trial, agents = await start_canary(database, tmp_path)
    windows = SINCE[:36]  # the newest of them are kept for the gate, and not judged
    await play(database, windows, canary=agents, pnl=lambda agent, _: -100 * worth if agent in agents else 10.0)
    own = tmp_path / "arena.toml"
    own.write_text('name = "arena"\n[success]\nmeasure = "points"\nfacts = { points = 1.0 }\n')
    for window in (*BEFORE, *windows):
        changed = worth if window in windows else 0.0
        alike = {name: level(name, window) - 0.05 * int(name[-2:]) for name in AGENTS}
        points = {name: one + (changed if name in agents else 0.0) for name, one in alike.items()}
        facts = [Fact(name, "points", after=one) for name, one in points.items()]
        await record_facts(database, window, facts, now=AFTER)
    flags = ["--database-url", database_url, "--home", str(tmp_path), "--until", AFTER.isoformat()]
    judged = [*flags, "--world", str(own), "--judge", "reward"]
    assert await asyncio.to_thread(judge_command.main, judged) == 0, capfd.readouterr()
    evidence = await evidence_of(database, trial, AFTER)
    assert LOOKS[0][0] <= evidence.windows < len(windows)
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is not never, decision
    assert decision.difference is not None
    assert decision.difference.mean * worth > 0.5, "what the rows claim has the other sign"


@pytest.mark.parametrize("answered", ["hindsight@step1", "hindsight", "gpt-5-mini"])
async def test_agents_whose_log_does_not_name_the_canary_decide_nothing(
    database: Database, tmp_path: Path, answered: str
) -> None:
    trial, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents, answers=answered)
    await judge(database, SINCE, worse_by(0.3, agents))  # type: ignore[arg-type]
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is CanaryRuling.WAIT
    assert f"in {len(SINCE)} windows the canary's agents did not use it" in decision.reason
    assert "send their agent id as `user`" in decision.reason
    assert await running_canary(database, "hindsight") == trial


async def test_without_verdicts_it_waits_and_says_what_is_needed(database: Database, tmp_path: Path) -> None:
    trial, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    assert await evidence_of(database, trial, AFTER) is NOTHING
    decision = await settle_canary(database, tmp_path, "hindsight", now=AFTER)
    assert decision is not None
    assert decision.ruling is CanaryRuling.WAIT
    assert "0 judged windows so far, the next look is at 12; training judges windows" in decision.reason
    assert await running_canary(database, "hindsight") == trial


async def test_a_past_that_another_judge_judged_is_no_past(database: Database, tmp_path: Path) -> None:
    trial, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, lambda agent, window: 0.1, judge_name="another")
    decision = decide(await evidence_of(database, trial, AFTER))
    assert decision.ruling is CanaryRuling.WAIT
    assert "0 agents with the canary and 0 without have a past of 24 judged windows or more" in decision.reason
    assert "12 agents without such a past cannot be compared" in decision.reason


@pytest.mark.parametrize(
    "asked",
    [
        {"group": "evaluation/{window}/1"},
        {"run_id": "certify gpt-test 1"},
        {"judged_at": AFTER},
        {"name": "nobody/{window}/{agent}"},
    ],
)
async def test_only_the_first_verdict_that_a_run_asked_for_on_a_logged_row_counts(
    database: Database, tmp_path: Path, asked: dict[str, str]
) -> None:
    """Not an evaluation's of replies that nobody gave, nor an examination's of altered outcomes, nor a second one."""
    trial, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, level)
    before = await evidence_of(database, trial, AFTER)
    again = {"run_id": "run-1"} | asked
    await judge(database, [*BEFORE, *SINCE], lambda agent, window: 0.0, **again)  # type: ignore[arg-type]
    after = await evidence_of(database, trial, AFTER)
    np.testing.assert_allclose(after.changes, before.changes)
    assert len(after.is_canary) == len(AGENTS)


# Without a database


def test_waiting_says_where_the_next_look_is_and_when_there_is_none() -> None:
    undecided = played(np.random.default_rng(1), worth=-0.025, windows=100)
    assert "not decided; 100 judged windows so far, the next look is at 168" in decide(undecided).reason
    contrary = played(np.random.default_rng(1), inside=0.5, worth=-0.1, windows=LOOKS[-1][0])
    assert "no further look: decide with `promote.py --finish --force" in decide(contrary).reason


def test_agents_that_seldom_play_are_not_units() -> None:
    evidence = played(np.random.default_rng(2), windows=168)
    seldom = evidence.changes.copy()
    seldom[2:16, 30:] = np.nan  # fourteen of the eighteen others
    decision = decide(CanaryEvidence(seldom, evidence.is_canary))
    assert decision.difference is not None
    assert decision.difference.windows == 48  # the later look has too few others
    assert "of 18 without" in decision.reason


def test_training_refuses_a_canary_that_it_could_not_start_before_it_opens_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-key-for-tests")
    nowhere = ["--database-url", "postgresql://nobody@127.0.0.1:1/none", "--home", str(tmp_path)]
    assert train_command.main([*nowhere, "--backend", "serverless", "--canary", "0.1"]) == 2
    assert "the serverless backend gives every agent the same" in " ".join(capfd.readouterr().err.split())
