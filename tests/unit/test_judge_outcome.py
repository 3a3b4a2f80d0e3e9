"""The offline judge: invalid lowest, luck and skill by rank, and planted skill found only where there is some."""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, stdev
from typing import Any

import pytest

from data_bridge.models import AgentTrajectory, StockOutcome, WindowOutcomes
from data_bridge.quality import Reason
from tests.builders import make_action, make_outcomes, make_step, make_trajectory
from tests.builders_judge import agent, make_group
from tests.builders_played import played_groups
from trainer.judge.open import describe
from trainer.judge.outcome import Assessment, OutcomeJudge, assess, scores
from trainer.statistics.intervals import spearman
from trainer.types import Group, JudgedGroup, JudgeFailure


async def judged(group: Group) -> dict[str, float]:
    result = await OutcomeJudge().judge(group)
    assert isinstance(result, JudgedGroup)
    return {verdict.trajectory_id: verdict.score for verdict in result.verdicts}


async def test_more_profit_in_the_window_scores_higher() -> None:
    assert await judged(make_group(-100, 0, 100)) == {
        "trajectory-1": 0.25,
        "trajectory-2": pytest.approx(0.625),
        "trajectory-3": 1.0,
    }


async def test_an_invalid_action_scores_lowest_and_a_lost_trade_higher() -> None:
    invalid = agent(1, pnl=0, success=False, error="no such ticker")
    lost = agent(2, pnl=-500)
    group = Group("group", "2026-11-02T10:00", (invalid, lost), make_outcomes())
    found = await judged(group)
    assert found["trajectory-1"] == 0
    assert found["trajectory-2"] == pytest.approx(0.625)


async def test_the_books_count_for_nothing() -> None:
    rich = make_trajectory("rich", steps=[make_step(0, pnl=90_000.0)], lifetime_pnl=99_001.0)
    poor = make_trajectory("poor", steps=[make_step(0, pnl=-400.0)], lifetime_pnl=-300.0)
    found = await judged(Group("group", "2026-11-02T10:00", (rich, poor), make_outcomes()))
    assert found[poor.trajectory_id] == found[rich.trajectory_id]


async def test_equal_results_score_equally_so_that_the_group_has_no_signal() -> None:
    assert set((await judged(make_group(10, 10, 10))).values()) == {0.625}


def test_of_equal_profits_the_smaller_risk_scores_higher() -> None:
    careful, daring = Assessment(1.0, 0.01, at_risk=0.01), Assessment(1.0, 0.01, at_risk=0.10)
    assert scores([careful, daring]) == [1.0, 0.25]


def test_some_invalid_decisions_cost_their_share() -> None:
    half, whole = Assessment(0.5, 0.01, 0.0), Assessment(1.0, 0.01, 0.0)
    assert scores([half, whole]) == [pytest.approx(0.3125), pytest.approx(0.625)]


def test_profit_is_relative_to_the_markets_move_and_the_balance() -> None:
    found = assess(agent(1, pnl=100), make_outcomes())
    assert found is not None
    assert found.excess == pytest.approx(0.0)
    assert found.at_risk == pytest.approx(1.0 * 0.10)


def test_a_stake_of_which_only_the_money_is_known_counts_as_a_tenth_of_the_balance() -> None:
    for balance in (1.0, 100.0, 1e9, None):
        found = assess(make_trajectory("bought", steps=[make_step(0, balance=balance)]), make_outcomes())
        assert found is not None
        assert found.excess == pytest.approx(0.1 * 0.10 - 0.10)


def orders(*actions: tuple[str, dict[str, Any]]) -> AgentTrajectory:
    return make_trajectory(steps=[make_step(0, action=make_action(kind, parameters=said)) for kind, said in actions])


@pytest.mark.parametrize(
    ("actions", "earned"),
    [
        ([("BUY", {"ticker": "ACME", "percent": 20})], 0.02),
        ([("BUY", {"ticker": "ACME", "percent": 20}), ("SELL", {"ticker": "ACME", "percent": 5})], 0.015),
        ([("BUY", {"ticker": "ACME", "percent": 20}), ("CLOSE_POSITION", {"ticker": "ACME"})], 0.0),
        ([("BUY", {"ticker": "ACME", "percent": 90})] * 5, 0.1),
        ([("BUY", {"ticker": "ACME", "fraction": 1.0}), ("BUY_YES", {"marketId": "market-1", "percent": 100})], 0.55),
        ([("BUY_NO", {"marketId": "market-1", "percent": 2})], -0.02),
        ([("HOLD", {}), ("CREATE_POST", {"content": "Up!"})], 0.0),
    ],
    ids=["bought", "sold a part", "closed", "five times the balance", "two markets", "a lost bet", "nothing"],
)
def test_what_decisions_earned_follows_from_the_prices(
    actions: list[tuple[str, dict[str, Any]]], earned: float
) -> None:
    found = assess(orders(*actions), make_outcomes())
    assert found is not None
    assert found.valid_share == 1.0
    assert found.excess + 0.1 == pytest.approx(earned)


@pytest.mark.parametrize(
    "said",
    [{"error": "no funds"}, {"result": {"error": "no funds"}}, {"kind": "PENDING"}, {"kind": " pending "}],
    ids=["error", "error in the result", "pending", "pending in spaces"],
)
async def test_success_does_not_undo_an_error_or_finish_what_is_pending(said: dict[str, Any]) -> None:
    failed = agent(3, success=True, **({"parameters": {"ticker": "ACME", "percent": 100}} | said))
    found = await judged(Group("group", "2026-11-02T10:00", (agent(1), failed), make_outcomes()))
    assert found["trajectory-3"] == 0.0


async def test_who_cannot_be_measured_is_left_out_alone() -> None:
    unknown = make_trajectory("unknown", steps=[make_step(0, action=make_action(parameters={"ticker": "GONE"}))])
    group = Group("group", "2026-11-02T10:00", (agent(1, pnl=1), unknown, agent(2, pnl=-50)), make_outcomes())
    result = await OutcomeJudge().judge(group)
    assert isinstance(result, JudgedGroup)
    assert [verdict.trajectory_id for verdict in result.verdicts] == ["trajectory-1", "trajectory-2"]
    assert result.group.trajectories == (group.trajectories[0], group.trajectories[2])
    assert [(one.trajectory_id, one.reason) for one in result.left_out] == [(unknown.trajectory_id, Reason.NO_PNL)]


async def test_a_group_with_unknowable_profit_is_a_failure_never_a_guess() -> None:
    elsewhere = WindowOutcomes(stocks=(StockOutcome("OTHER", 1.0, 2.0, 100.0),))
    result = await OutcomeJudge().judge(Group("group", "2026-11-02T10:00", (agent(1), agent(2, pnl=1)), elsewhere))
    assert isinstance(result, JudgeFailure)
    assert result.reason is Reason.NO_PNL


@pytest.mark.parametrize("amount", ["NaN", "inf", "-1e400", 1e308, 10**400, "a lot"])
async def test_a_stake_without_measure_counts_as_any_other_and_crashes_nothing(amount: object) -> None:
    odd = agent(1, pnl=50, parameters={"ticker": "ACME", "amount": amount})
    found = await judged(Group("group", "2026-11-02T10:00", (odd, agent(2, pnl=-50)), make_outcomes()))
    assert found == {"trajectory-1": 1.0, "trajectory-2": 0.25}


async def test_it_says_that_it_is_not_an_llm() -> None:
    result = await OutcomeJudge().judge(make_group())
    assert isinstance(result, JudgedGroup)
    assert not result.identity.is_llm
    assert "not an LLM" in describe(result.identity)
    assert all("not an LLM" in verdict.explanation for verdict in result.verdicts)


async def skill_found(luck: float, agents: int, seed: int, windows: int = 100) -> float:
    """Rank correlation between the planted skill of the agents and their mean scores."""
    groups, skill = await played_groups(windows, agents, seed, luck)
    heard: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        by_trajectory = await judged(group)
        for trajectory in group.trajectories:
            heard[trajectory.agent_id].append(by_trajectory[trajectory.trajectory_id])
    agent_ids = sorted(heard)
    found = spearman([skill[name] for name in agent_ids], [fmean(heard[name]) for name in agent_ids])
    assert found is not None
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_it_ranks_planted_skill_over_a_hundred_windows(seed: int) -> None:
    assert await skill_found(luck=0.2, agents=8, seed=seed) >= 0.8


async def test_it_finds_nothing_where_there_is_only_luck() -> None:
    """Agents who follow the same news are lucky together, so one seed may find either sign; many average to nothing."""
    found = [await skill_found(luck=1.0, agents=8, seed=seed, windows=20) for seed in range(24)]
    assert abs(fmean(found)) < 2.6 * stdev(found) / math.sqrt(len(found))
    assert min(found) < 0 < max(found)
