"""A canary is nobody's to decide: not by what agents write, not by what they claim, not by how they behave."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.window_ids import end_of
from tests.builders import insert_agents, insert_rows, insert_trajectory, naive, trajectory_row
from tests.builders_canary import AFTER, AGENTS, BEFORE, SINCE, judge, level, play, shares, start_canary, steps_of
from tests.builders_promotion import insert_checkpoint
from trainer.ledger.releases import canary_agents_of, running_canary, serving
from trainer.promote.canary import CanaryRuling, evidence_of, settle_canary
from trainer.promote.publish import publish
from trainer.types import Serving

FINISH, ROLL_BACK, WAIT = CanaryRuling.FINISH, CanaryRuling.ROLL_BACK, CanaryRuling.WAIT


async def ruling_of(database: Database, home: Path) -> CanaryRuling:
    decision = await settle_canary(database, home, "hindsight", now=AFTER)
    assert decision is not None
    return decision.ruling


# What a row says


async def test_scores_that_rows_claim_of_themselves_do_not_end_a_canary(database: Database, tmp_path: Path) -> None:
    """``aiJudgeReward`` can be set by whoever writes a row: 0 with the canary, 1 without it."""
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await database.pool.execute(
        'UPDATE trajectories SET "aiJudgeReward" = CASE WHEN "agentId" = ANY($1) THEN 0 ELSE 1 END', list(agents)
    )
    assert await ruling_of(database, tmp_path) is WAIT


async def test_scores_that_rows_claim_do_not_finish_a_canary_that_is_judged_worse(
    database: Database, tmp_path: Path
) -> None:
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, lambda agent, window: level(agent, window) - 0.3 * (agent in agents))
    await database.pool.execute(
        'UPDATE trajectories SET "aiJudgeReward" = CASE WHEN "agentId" = ANY($1) THEN 1 ELSE 0 END', list(agents)
    )
    assert await ruling_of(database, tmp_path) is ROLL_BACK


async def test_one_liar_outside_does_not_end_a_canary_by_claiming_profits(database: Database, tmp_path: Path) -> None:
    _, agents = await start_canary(database, tmp_path)
    liar = next(agent for agent in AGENTS if agent not in agents)
    await play(database, SINCE, canary=agents, pnl=lambda agent, window: 1e9 if agent == liar else 10.0)
    await judge(database, SINCE, lambda agent, window: level(agent, window) + 0.1 * (agent in agents))
    assert await ruling_of(database, tmp_path) is FINISH


async def test_claimed_losses_of_the_canarys_own_agents_do_not_end_it(database: Database, tmp_path: Path) -> None:
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents, pnl=lambda agent, window: -999.0 if agent in agents else 10.0)
    assert await ruling_of(database, tmp_path) is WAIT


async def test_an_agent_with_five_more_rows_an_hour_counts_as_one(database: Database, tmp_path: Path) -> None:
    """Before, every row was a voice: one agent's rows were most of "all others"."""
    _, agents = await start_canary(database, tmp_path)
    liar = next(agent for agent in AGENTS if agent not in agents)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, lambda agent, window: level(agent, window) + 0.05 * (agent in agents))
    for more in range(5):
        await _again(database, liar, "hindsight@step1", pnl=500.0, name=f"more-{more}")
        await judge(database, SINCE, lambda agent, window: 1.0, [liar], name=f"{{window}}/more-{more}", judged_at=AFTER)
    assert await ruling_of(database, tmp_path) is FINISH


async def _again(database: Database, agent: str, model: str, *, pnl: float, name: str) -> None:
    """Another row of ``agent`` in every window, written a day after the window."""
    rows = [
        trajectory_row(
            agent,
            window_id=window,
            trajectoryId=f"{window}/{name}",
            steps_json=steps_of(model, pnl),
            createdAt=naive(end_of(window, 1) + timedelta(days=1)),
            finalPnL=None,
        )
        for window in SINCE
    ]
    await insert_rows(database.pool, "trajectories", rows)


# Who is chosen, and since when


async def test_a_row_of_the_year_2999_does_not_keep_a_canary_from_ever_being_settled(
    database: Database, tmp_path: Path
) -> None:
    """Before, the canary began after the newest window that anybody named."""
    await insert_agents(database.pool, ["mallory"])
    await insert_trajectory(database.pool, "mallory", window_id="2999-01-01T00:00", trajectoryId="far")
    trial, agents = await start_canary(database, tmp_path)
    assert trial.canary_after == BEFORE[-1]
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, lambda agent, window: level(agent, window) - 0.3 * (agent in agents))
    assert await ruling_of(database, tmp_path) is ROLL_BACK


async def test_rows_of_the_year_2999_do_not_make_their_writers_the_only_agents(
    database: Database, tmp_path: Path
) -> None:
    """Before, the last week of the log was the week before the newest ``startTime``: theirs."""
    puppets = ["puppet-1", "puppet-2", "puppet-3"]
    await insert_agents(database.pool, puppets)
    for agent in puppets:
        await insert_trajectory(database.pool, agent, window_id="2999-01-01T00:00")
    _, agents = await start_canary(database, tmp_path)
    assert len(agents) == 3  # of the twelve that play
    assert not agents & set(puppets)


async def test_nobody_can_choose_an_id_that_is_a_canarys(database: Database, tmp_path: Path) -> None:
    """Before, the choice followed from the number of the promotion, which is the next one."""
    await play(database, BEFORE[:1], [f"agent-{number}" for number in range(40)])
    points = [await insert_checkpoint(database, step, backend="cpu", location=tmp_path) for step in (1, 2, 3, 4)]
    chosen = []
    for number, point in enumerate(points, start=1):
        ids = [f"mallory-{attempt}" for attempt in range(2000)]
        best = min(ids, key=lambda agent: hashlib.blake2b(f"{number}:{agent}".encode()).digest())
        await play(database, BEFORE[-1:], [best])
        trial = await publish(
            database, tmp_path, point.as_release(), Serving("http://x", point.name), reason="better", canary=0.01
        )
        assert trial.promotion_id == number
        chosen.append(best in await canary_agents_of(database.pool, trial))
    assert not all(chosen)  # by chance once in three million


@pytest.mark.parametrize(("gap", "worth", "wrong"), [(-0.3, 0.0, ROLL_BACK), (0.3, -0.2, FINISH)])
async def test_that_weak_or_strong_agents_were_chosen_decides_nothing(
    database: Database, tmp_path: Path, gap: float, worth: float, wrong: CanaryRuling
) -> None:
    """Before, an equal model was rolled back in 37 % where agents differ by 0.1, and a worse one finished in 35 %."""
    _, agents = await start_canary(database, tmp_path)
    await database.pool.execute("DELETE FROM hindsight.verdicts")

    def judged(agent: str, window: str) -> float:
        return level(agent, window) + (gap + worth * (window > BEFORE[-1])) * (agent in agents)

    await play(database, SINCE, canary=agents, pnl=lambda agent, window: 100 * judged(agent, window))
    await judge(database, [*BEFORE, *SINCE], judged)
    assert await ruling_of(database, tmp_path) is not wrong


# How agents behave


def test_one_liar_outside_cannot_turn_a_winning_canary_into_a_rollback_or_a_wait() -> None:
    """It did badly on purpose for four weeks, and well since. Before, one in three was rolled back."""
    found = shares(100, 1, worth=0.03, outside=0.9)
    assert found[FINISH] >= 0.98, found
    assert found[ROLL_BACK] == 0


def test_one_liar_outside_does_not_get_a_worse_model_finished() -> None:
    """It does badly on purpose since. Before, half of them were finished."""
    assert shares(200, 2, worth=-0.05, outside=-0.5)[FINISH] <= 0.05


def test_one_liar_in_the_canary_decides_nothing_by_itself() -> None:
    """One of two does so well that a worse model looks better, or so badly that an equal one looks worse.

    Before, it always had its way.
    """
    by_chance = 0.025  # what 300 trials may add to 5 %; of 1,000 it is under 5 % (benchmarks/canary.py)
    assert shares(300, 3, worth=-0.05, inside=0.5)[FINISH] <= 0.05 + by_chance
    assert shares(300, 4, inside=-0.5)[ROLL_BACK] <= 0.05 + by_chance


# Second thoughts


async def test_a_ruling_about_one_canary_is_not_carried_out_on_the_next(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host publishes a new canary while the old one's evidence is read: before, the new one was finished."""
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, lambda agent, window: level(agent, window) + 0.05 * (agent in agents))
    third = await insert_checkpoint(database, 3, backend="cpu", location=tmp_path, windows=[])
    read = evidence_of

    async def meanwhile(*arguments: object) -> object:
        evidence = await read(*arguments)  # type: ignore[arg-type]
        at = Serving("http://127.0.0.1:1/v1", third.name)
        await publish(database, tmp_path, third.as_release(), at, reason="newer", canary=0.25)
        return evidence

    monkeypatch.setattr("trainer.promote.canary.evidence_of", meanwhile)
    assert await settle_canary(database, tmp_path, "hindsight", now=AFTER) is None
    running, used = await running_canary(database, "hindsight"), await serving(database, "hindsight")
    assert running is not None
    assert used is not None
    assert (running.checkpoint.step, used.checkpoint.step) == (3, 1)


async def test_rows_that_are_written_and_judged_later_do_not_end_a_canary(database: Database, tmp_path: Path) -> None:
    _, agents = await start_canary(database, tmp_path)
    await play(database, SINCE, canary=agents)
    await judge(database, SINCE, lambda agent, window: level(agent, window) + 0.05 * (agent in agents))
    liar = min(agents)
    await _again(database, liar, "hindsight@step2", pnl=-999.0, name="again")
    await judge(database, SINCE, lambda agent, window: 0.0, [liar], run_id="judge-2", judged_at=AFTER)
    await judge(database, SINCE, lambda agent, window: 0.0, [liar], name="{window}/again", judged_at=AFTER)
    assert await ruling_of(database, tmp_path) is FINISH
