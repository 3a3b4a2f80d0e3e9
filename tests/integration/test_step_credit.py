"""Decisions are credited by themselves: the bad one is found, and the ledger still knows whole trajectories."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from data_bridge.database import Database
from data_bridge.models import StockOutcome, WindowOutcomes
from data_bridge.quality import Exclusion, Reason
from data_bridge.scoring import Scored, ScoreRequest
from tests.builders import WINDOW, make_action, make_call, make_step, make_trajectory
from tests.builders_training import make_batch, make_trainee
from tests.tiny_model import shared_tiny_model
from trainer.cli import lineage as lineage_command
from trainer.config.training import CpuTrainee
from trainer.inference.policy import CpuPolicy
from trainer.judge.outcome import OutcomeJudge
from trainer.ledger.model_lock import hold
from trainer.ledger.rewards import history_of_step
from trainer.ledger.runs import Ledger
from trainer.train.backends.prepare import prepare
from trainer.train.credit import history_of
from trainer.train.reward_history import differences
from trainer.train.stage import record_of
from trainer.train.step_credit import by_decision, returns
from trainer.types import Checkpoint, Group, JudgedGroup, RunPlan, StepResult

TICKERS = ("ACME", "BOLT", "COIN")
"""One for each of three decisions."""


def hour(moves: Sequence[float], answers: Sequence[Sequence[str]]) -> Group:
    """Agents that take a decision about each ticker, in turn."""
    stocks = tuple(
        StockOutcome(ticker, start_price=100.0, end_price=100.0 * (1 + move), change_percent=100 * move)
        for ticker, move in zip(TICKERS, moves, strict=True)
    )
    rows = tuple(
        make_trajectory(
            f"agent-{agent}",
            trajectory_id=f"t{agent}",
            steps=[
                make_step(
                    number,
                    action=make_action(kind, parameters={"ticker": TICKERS[number], "percent": 20}),
                    calls=[make_call(f"{kind} {TICKERS[number]} 20", prompt=f"What about {TICKERS[number]}?")],
                )
                for number, kind in enumerate(said)
            ],
        )
        for agent, said in enumerate(answers)
    )
    return Group(f"{WINDOW}/1", WINDOW, rows, WindowOutcomes(stocks=stocks))


async def judged(group: Group) -> JudgedGroup:
    found = await OutcomeJudge().judge(group)
    assert isinstance(found, JudgedGroup)
    return found


async def lowest_is_planted(seed: int, *, luck: float) -> bool:
    """Whether the planted bad decision of agent 0 has the lowest credit of its three."""
    rng = random.Random(seed)
    news = [rng.choice((-0.1, 0.1)) for _ in TICKERS]
    moves = [rng.choice((-0.1, 0.1)) if rng.random() < luck else move for move in news]
    right = ["BUY" if move > 0 else "SELL" for move in news]
    wrong = ["SELL" if kind == "BUY" else "BUY" for kind in right]
    planted = rng.randrange(3)
    answers = [[wrong[n] if n == planted else right[n] for n in range(3)]]
    answers += [[right[n] if rng.random() < 0.6 else wrong[n] for n in range(3)] for _ in range(7)]
    parted = by_decision(make_batch(await judged(hour(moves, answers))), 0.5)
    credits: dict[int, float] = {}
    for rewards in history_of(parted.batch.groups):
        for one in rewards:
            decision = parted.decisions[one.graded.trajectory_id]
            if decision.trajectory_id == "t0":
                credits[decision.number] = one.advantage
    assert len(credits) == 3
    return min(credits, key=lambda number: credits[number]) == planted


async def test_a_planted_bad_decision_has_the_lowest_credit_and_is_at_chance_where_all_is_luck() -> None:
    found = [await lowest_is_planted(seed, luck=0.0) for seed in range(200)]
    assert np.mean(found) >= 0.95
    lucky = [await lowest_is_planted(seed, luck=1.0) for seed in range(300)]
    assert abs(np.mean(lucky) - 1 / 3) < 3 * np.sqrt(1 / 3 * 2 / 3 / 300)


def test_a_decision_is_credited_with_what_follows_it_by_the_discount() -> None:
    assert returns([1.0, 0.0, 0.5], 0.0) == [1.0, 0.0, 0.5]
    assert returns([1.0, 0.0, 0.5], 1.0) == pytest.approx([0.5, 0.25, 0.5])
    assert returns([1.0, 0.0, 0.5], 0.5) == pytest.approx([1.125 / 1.75, 0.25 / 1.5, 0.5])


class OfPolicy:
    def __init__(self, policy: CpuPolicy) -> None:
        self._policy = policy

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return self._policy.score(requests)


ANSWERS = (("BUY", "BUY", "BUY"), ("BUY", "SELL", "BUY"), ("SELL", "BUY", "SELL"))


async def test_a_decision_is_a_trajectory_for_the_backend_and_the_ledger_has_whole_ones(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    scorer = OfPolicy(CpuPolicy(shared_tiny_model(tmp_path_factory), rank=2, learning_rate=1e-3, seed=0))
    batch = make_batch(await judged(hour((0.1, 0.1, 0.1), ANSWERS)))
    trainee = make_trainee(min_spread=0.0, step_credit=True)
    prepared = await prepare(batch, trainee, scorer)
    assert prepared.batch == batch
    assert [len(group.trajectories) for group in prepared.groups] == [3, 3, 3], "a group for each decision"
    assert prepared.exclusions == ()
    for group in prepared.groups:
        for one in group.trajectories:
            assert not one.additional_histories
            assert one.metadata["trajectory_id"] in ("t0", "t1", "t2")
    assert prepared.history is not None
    assert {(one.graded.trajectory_id, one.graded.step) for one in prepared.history.members} == {
        (f"t{agent}", number) for agent in range(3) for number in range(3)
    }
    scores = {verdict.trajectory_id: verdict.score for verdict in batch.groups[0].verdicts}
    assert differences(prepared.history, scores) == []

    fault = Exclusion("t1", "agent-1", WINDOW, Reason.ROW_FAULT, "it broke")
    without = await prepare(replace(batch, untrained=(fault,)), trainee, scorer)
    assert [(one.trajectory_id, one.reason) for one in without.exclusions] == [("t1", Reason.ROW_FAULT)]
    whole = await prepare(batch, make_trainee(min_spread=0.0), scorer)
    assert [len(group.trajectories) for group in whole.groups] == [3], "off is the default"
    assert prepared.trainable_tokens > whole.trainable_tokens, (
        "who is at the mean as a whole has decisions that are not"
    )


async def test_the_ledger_keeps_each_decision_and_rebuilds_it(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scorer = OfPolicy(CpuPolicy(shared_tiny_model(tmp_path_factory), rank=2, learning_rate=1e-3, seed=0))
    batch = make_batch(await judged(hour((0.1, -0.1, 0.1), ANSWERS)))
    prepared = await prepare(batch, make_trainee(min_spread=0.0, step_credit=True), scorer)
    ledger, nothing = Ledger(database), RunPlan((), (), 0.0, 0)
    names = {"model": "hindsight", "base_model": "tiny", "backend": "fake", "fingerprint": "same"}
    await ledger.start_run("run-1", **names, settings={}, plan=nothing)
    record = record_of(prepared, "run-1", 1)
    async with hold(database, "hindsight") as lock:
        await ledger.batch_prepared(lock, record)
        point = Checkpoint("hindsight", 1, "tiny", "fake", "/checkpoints/0001")
        await ledger.batch_trained(lock, record, StepResult(point, 10, {}), {})
    found = await history_of_step(database, "hindsight", 1)
    assert found is not None
    assert found.history is not None
    assert found.history == prepared.history
    assert found.trained == {"t0", "t1", "t2"}
    assert differences(found.history, found.scores) == []


async def test_agents_who_were_asked_something_else_are_compared_by_the_place_of_their_decision() -> None:
    batch = make_batch(await judged(hour((0.1, 0.1, 0.1), ANSWERS)))
    [group] = batch.groups
    rows = list(group.group.trajectories)
    step = make_step(1, action=rows[2].steps[1].action, calls=[make_call("BUY", prompt="Something else?")])
    rows[2] = make_trajectory("agent-2", trajectory_id="t2", steps=[rows[2].steps[0], step, rows[2].steps[2]])
    other = replace(group, group=replace(group.group, trajectories=tuple(rows)))
    sizes = [len(one.verdicts) for one in by_decision(replace(batch, groups=(other,)), 0.5).batch.groups]
    assert sizes == [3, 1, 2, 3], "alone with its prompt it has no peer; prepare says so"


async def test_a_judge_that_scores_the_whole_alone_is_credited_as_before() -> None:
    one = await judged(hour((0.1, 0.1, 0.1), ANSWERS))
    batch = make_batch(replace(one, verdicts=tuple(replace(verdict, steps=()) for verdict in one.verdicts)))
    assert by_decision(batch, 0.5).batch == batch


def _benchmark() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "step_credit.py"
    spec = importlib.util.spec_from_file_location("benchmark_step_credit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_reading_is_learnt_in_seven_tenths_of_the_steps_that_whole_trajectories_need() -> None:
    trial = _benchmark()
    shares = [trial.steps_needed(seed, 0.0, 0.5) / trial.steps_needed(seed, 0.0, None) for seed in range(8)]
    assert np.mean(shares) <= 0.7


async def test_a_potential_is_in_the_reward_history_and_rebuilt_to_the_last_bit(
    database: Database, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Agents whose accounts went different ways; the last decision of each is worth less the richer it was then."""
    group = hour((0.1, 0.1, 0.1), ANSWERS)
    rows = [
        msgspec.structs.replace(
            row,
            steps=[
                msgspec.structs.replace(
                    step, state=msgspec.structs.replace(step.state, lifetime_pnl=7.0 * agent**2 * n)
                )
                for n, step in enumerate(row.steps)
            ],
        )
        for agent, row in enumerate(group.trajectories)
    ]
    batch = make_batch(await judged(replace(group, trajectories=tuple(rows))))
    trainee = make_trainee(min_spread=0.0, step_credit=True, potential="equity", step_discount=0.7)
    prepared, plain = await prepare(batch, trainee), await prepare(batch, _without_potential(trainee))
    assert prepared.history is not None
    assert plain.history is not None
    assert prepared.history.rule.discount == 0.7
    for one, other in zip(prepared.history.members, plain.history.members, strict=True):
        agent, number = int(one.graded.trajectory_id[1:]), one.graded.step or 0
        assert (one.graded.potential, one.graded.ahead) == (7.0 * agent**2 * number / 1000, 3 - number)
        assert one.graded.score == other.graded.score
        assert (one.advantage == pytest.approx(other.advantage, abs=1e-12)) is (number == 0), "they began alike"

    ledger, nothing = Ledger(database), RunPlan((), (), 0.0, 0)
    names = {"model": "hindsight", "base_model": "tiny", "backend": "fake", "fingerprint": "same"}
    await ledger.start_run("run-1", **names, settings={}, plan=nothing)
    record = replace(record_of(replace(prepared, exclusions=()), "run-1", 1), exclusions=())
    async with hold(database, "hindsight") as lock:
        await ledger.batch_prepared(lock, record)
        point = Checkpoint("hindsight", 1, "tiny", "fake", "/checkpoints/0001")
        await ledger.batch_trained(lock, record, StepResult(point, 10, {}), {})
    found = await history_of_step(database, "hindsight", 1)
    assert found is not None
    assert found.history == prepared.history

    flags = ["hindsight@step1", "--rewards", "--database-url", database_url, "--home", str(tmp_path)]
    assert await asyncio.to_thread(lineage_command.main, flags) == 0
    told = capfd.readouterr().out
    assert "Rebuilt bit for bit" in told
    assert "potential" in told
    await database.pool.execute("UPDATE hindsight.rewards SET potential = potential + 1e-9 WHERE step = 2")
    assert await asyncio.to_thread(lineage_command.main, flags) == 4


def _without_potential(trainee: CpuTrainee) -> CpuTrainee:
    return replace(trainee, training=trainee.training.model_copy(update={"potential": "off"}))
