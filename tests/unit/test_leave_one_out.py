"""What a window would have come to without an agent's decisions, by replay of the simulated market."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from data_bridge.errors import ConfigurationError
from data_bridge.models import Action, AgentTrajectory
from data_bridge.window_ids import windows_from
from tests.builders_played import group_of
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.judge.outcome import OutcomeJudge
from trainer.rewards import Baseline
from trainer.run.leave_one_out import HELD, baselines_of, refuse_unknown_counterfactual
from trainer.train.credit import history_of
from trainer.train.step_credit import by_decision
from trainer.types import Batch, Group, JudgedGroup
from trainer.world import exchange
from trainer.world.agents import scripted_cast
from trainer.world.leave_one_out import PlayedOrders, played_orders
from trainer.world.market import Market
from trainer.world.player import Player
from trainer.world.replay import SimulatedWindow

WINDOWS = windows_from("2026-03-02T00:00", 6)


async def played(decisions: int = 2, agents: int = 6) -> list[tuple[SimulatedWindow, Group]]:
    market = Market(seed=7, luck=0.2, stage="several", decisions=decisions)
    hours = [hour async for hour in Player(market, scripted_cast(agents, 7)).play(WINDOWS)]
    return [(SimulatedWindow(hour.hour.window_id, market, hour.tape), group_of(hour)) for hour in hours]


async def replays() -> list[tuple[Group, PlayedOrders]]:
    found = [(group, played_orders(window, group.trajectories)) for window, group in await played()]
    return [(group, orders) for group, orders in found if orders is not None]


async def test_the_log_gives_the_prices_that_were_played_and_a_missing_row_is_noticed() -> None:
    hours = await played()
    assert len(await replays()) == len(hours)
    for window, group in hours:
        assert played_orders(window, ()) is None
        moved = [played_orders(window, group.trajectories[:place]) for place in range(1, 6)]
        assert None in moved
        whole = played_orders(window, group.trajectories)
        assert whole is not None
        made = {
            one.trajectory_id: (one.window_pnl or 0.0) / (one.starting_balance or 1.0) for one in group.trajectories
        }
        assert whole.returns() == pytest.approx(made, abs=2e-6), "books are rounded to cents"


async def test_where_nobody_moves_a_price_a_contribution_is_the_agents_own_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "IMPACT", 0.0)
    for _, orders in await replays():
        assert {name: orders.contribution(name) for name in orders.orders} == pytest.approx(orders.returns(), abs=1e-12)


async def test_where_agents_move_prices_the_effect_on_the_others_is_small_and_counted() -> None:
    beyond: list[float] = []
    for _, orders in await replays():
        own = orders.returns()
        beyond += [abs(orders.contribution(name) - own[name]) for name in own]
        idle = [name for name, one in orders.orders.items() if not any(one)]
        assert all(orders.contribution(name) == 0.0 for name in idle)
    assert max(beyond) > 1e-6
    assert max(beyond) < exchange.IMPACT


async def test_the_baseline_does_not_depend_on_what_the_member_decided() -> None:
    """What an agent does itself can neither raise nor lower what it is compared with."""
    for group, orders in await replays():
        found = baselines_of(group, orders, 0.5)
        assert {one.trajectory_id for one in group.trajectories} <= found.keys()
        assert all(one.whose == HELD and 0 <= one.mean <= 1 for one in found.values())
        first = group.trajectories[0]
        other = next(one for name, one in orders.orders.items() if name != first.trajectory_id and any(one))
        changed = PlayedOrders(orders.hour, orders.orders | {first.trajectory_id: other})
        rows = (_failing(first), *group.trajectories[1:])
        again = baselines_of(replace(group, trajectories=rows, outcomes=changed.outcomes()), changed, None)
        assert again[first.trajectory_id] == found[first.trajectory_id]


def _failing(member: AgentTrajectory) -> AgentTrajectory:
    failed = Action(action_type="BUY", parameters={"ticker": "ACME"}, success=False, error="no")
    return msgspec.structs.replace(
        member, steps=[msgspec.structs.replace(step, action=failed) for step in member.steps]
    )


async def test_a_decision_is_compared_with_hold_at_its_own_place() -> None:
    for group, orders in await replays():
        judged = await OutcomeJudge().judge(group)
        assert isinstance(judged, JudgedGroup)
        found = baselines_of(judged.group, orders, 0.5)
        parted = by_decision(Batch("batch-1", "hindsight", 0, (judged,), baselines=found), 0.5)
        assert parted.decisions
        for rewards in history_of(parted.batch.groups, baselines=parted.batch.baselines):
            for one in rewards:
                assert Baseline(one.graded.whose, one.graded.baseline) == found[one.graded.trajectory_id]


@pytest.mark.parametrize(
    ("simulated", "values", "why"),
    [
        (False, {}, "is not known in a log; choose agent or role"),
        (True, {"judge_model": "judge"}, "needs --judge outcome"),
    ],
)
def test_it_is_refused_where_nobody_knows_what_would_have_happened(
    simulated: bool, values: dict[str, str], why: str
) -> None:
    settings = settings_from(TrainSettings, baseline="leave-one-out", **values)
    with pytest.raises(ConfigurationError, match=why):
        refuse_unknown_counterfactual(settings, simulated=simulated)
    refuse_unknown_counterfactual(settings_from(TrainSettings, baseline="leave-one-out"), simulated=True)
    refuse_unknown_counterfactual(settings_from(TrainSettings), simulated=False)
