"""What an agent did and earned by the game's prices; and no honest row of the simulated market contradicts them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from statistics import fmean
from typing import Any

import msgspec
import pytest

from data_bridge.decode import decode_steps
from data_bridge.faulty_rows import STEPS_FAULTS
from data_bridge.models import AgentTrajectory, StockOutcome, WindowOutcomes
from data_bridge.stakes import NOT_TRADES, Deed, contradiction, read_action, readings_of
from data_bridge.window_ids import windows_from
from tests.builders import make_action, make_outcomes, make_trajectory
from trainer.judge.outcome import OutcomeJudge, assess
from trainer.statistics.intervals import spearman
from trainer.types import Group, JudgedGroup
from trainer.world import record
from trainer.world.agents import scripted_cast
from trainer.world.market import Market, StageName, outcomes_of
from trainer.world.player import AgentHour, PlayedHour, Player
from trainer.world.worlds import MARKET

STILL_READ = ("lower-case action names", "half of a surrogate pair", "unknown P&L")
"""The faults of real tables after which a row is still usable."""


def deed_of(kind: str, parameters: dict[str, Any] | None = None, **fields: Any) -> Deed:
    return read_action(make_action(kind, parameters=parameters or {}, **fields), make_outcomes()).deed


@pytest.mark.parametrize(
    ("kind", "parameters", "deed"),
    [
        ("BUY", {"ticker": "$acme"}, Deed.STAKE),
        ("buy_shares", {"ticker": "ACME", "shares": 10}, Deed.STAKE),
        ("TRADE", {"marketId": "market-1", "side": "buy_no"}, Deed.STAKE),
        ("TRADING_DECISION", {"ticker": "ACME", "side": "long"}, Deed.STAKE),
        ("OPEN_PERP_POSITION", {"ticker": "ACME", "side": "short"}, Deed.STAKE),
        ("BET", {"marketId": "market-1", "side": "YES"}, Deed.STAKE),
        ("CLOSE_PERP_POSITION", {"positionId": "7"}, Deed.CLOSE),
        ("TRADE", {"ticker": "ACME", "side": "close_long"}, Deed.CLOSE),
        ("TRADING_DECISION", {"method": "a2a"}, Deed.UNCLEAR),
        ("BUY", {"ticker": "GONE"}, Deed.UNCLEAR),
        ("TRADE", {"ticker": "ACME"}, Deed.UNCLEAR),
        ("HOLD", {}, Deed.NO_TRADE),
        ("no_action", {"ticker": "ACME"}, Deed.NO_TRADE),
        ("CREATE_POST", {"content": "Up!"}, Deed.NO_TRADE),
        ("TELEPORT", {"ticker": "ACME", "side": "BUY"}, Deed.UNKNOWN),
    ],
)
def test_what_an_action_is_follows_from_its_name_and_parameters(
    kind: str, parameters: dict[str, Any], deed: Deed
) -> None:
    assert deed_of(kind, parameters) is deed


@pytest.mark.parametrize("kind", [*sorted(NOT_TRADES), "BUY", "TELEPORT"])
def test_an_action_that_failed_is_nothing_else(kind: str) -> None:
    assert deed_of(kind, {"ticker": "ACME"}, success=False) is Deed.FAILED


def test_a_move_is_read_off_the_prices_and_only_without_them_off_the_percentage() -> None:
    action = make_action(parameters={"ticker": "ACME"})
    for stock, move in (
        (StockOutcome("ACME", 100.0, 120.0, 999.0), 0.2),
        (StockOutcome("ACME", None, 120.0, -5.0), -0.05),
        (StockOutcome("ACME", 0.0, 120.0, 3.0), 0.03),
    ):
        stake = read_action(action, WindowOutcomes(stocks=(stock,))).stake
        assert stake is not None
        assert stake.gain == pytest.approx(move)
    assert read_action(action, WindowOutcomes(stocks=(StockOutcome("ACME", 100.0),))).deed is Deed.UNCLEAR


# The simulated market


async def played(market: Market, agents: int, windows: int) -> AsyncIterator[PlayedHour]:
    async for hour in Player(market, scripted_cast(agents, market.seed)).play(
        windows_from("2026-03-02T00:00", windows)
    ):
        yield hour


def steps_of(life: AgentHour, hour: PlayedHour) -> list[dict[str, Any]]:
    """As the recorder writes them."""
    return [
        {
            "stepNumber": number,
            "environmentState": MARKET.state(life.agent.role, step.seen, step.book, step.gain),
            "llmCalls": [msgspec.to_builtins(record._call(step, MARKET))],
            "action": msgspec.to_builtins(
                record.action_of(step.decision, step.error, step.price, step.book.stake, hour.hour)
            ),
        }
        for number, step in enumerate(life.steps)
    ]


def row_of(life: AgentHour, hour: PlayedHour, fault: str | None = None) -> AgentTrajectory:
    steps = steps_of(life, hour)
    text = msgspec.json.encode(steps).decode() if fault is None else STEPS_FAULTS[fault](steps)
    return make_trajectory(
        life.agent.agent_id,
        window_id=hour.hour.window_id,
        trajectory_id=f"{hour.hour.window_id}/{life.agent.index}",
        steps=decode_steps(text),
        lifetime_pnl=life.after.lifetime_pnl,
        final_balance=life.after.balance,
    )


@pytest.mark.parametrize("stage", ["one", "several"])
@pytest.mark.parametrize("decisions", [1, 4])
async def test_no_row_of_the_simulated_market_contradicts_its_prices(stage: StageName, decisions: int) -> None:
    checked = 0
    for seed in range(24):
        market = Market(seed=seed, luck=(0.0, 0.2, 1.0)[seed % 3], stage=stage, decisions=decisions)
        async for hour in played(market, agents=6, windows=2):
            closing = hour.tape.closing
            outcomes = outcomes_of(hour.hour, closing, closing)
            for number, life in enumerate(hour.agents):
                fault = STILL_READ[number // 2 % 3] if number % 2 else None
                row = row_of(life, hour, fault)
                assert contradiction(row, outcomes) is None, (seed, fault)
                checked += row.window_pnl is not None and row.steps[0].state.open_positions == 0
    assert checked > 200, "most books are really checked"


@pytest.mark.parametrize(("stage", "decisions"), [("one", 3), ("several", 1), ("several", 3)])
async def test_the_offline_judge_sees_the_planted_skill_on_every_stage(stage: StageName, decisions: int) -> None:
    market = Market(seed=7, luck=0.2, stage=stage, decisions=decisions)
    heard: dict[str, list[float]] = defaultdict(list)
    async for hour in played(market, agents=8, windows=200):
        closing = hour.tape.closing
        members = tuple(row_of(life, hour) for life in hour.agents)
        group = Group("group", hour.hour.window_id, members, outcomes_of(hour.hour, closing, closing))
        judged = await OutcomeJudge().judge(group)
        assert isinstance(judged, JudgedGroup)
        assert not judged.left_out
        for member, verdict in zip(judged.group.trajectories, judged.verdicts, strict=True):
            heard[member.agent_id].append(verdict.score)
    skill = {agent.agent_id: agent.skill or 0.0 for agent in scripted_cast(8, 7)}
    found = spearman([skill[name] for name in heard], [fmean(scores) for scores in heard.values()])
    assert found is not None
    assert found >= 0.8


async def test_what_is_recomputed_agrees_with_what_the_market_paid() -> None:
    """With one decision an order is filled close to the window's first price, so the two differ by little."""
    market = Market(seed=3, luck=0.2, stage="one", decisions=1)
    async for hour in played(market, agents=8, windows=20):
        outcomes = outcomes_of(hour.hour, hour.tape.closing, hour.tape.closing)
        for life in hour.agents:
            row = row_of(life, hour)
            found = assess(row, outcomes)
            assert found is not None
            if any(reading.deed is Deed.STAKE for reading in readings_of(row.actions, outcomes)):
                earned = found.excess + (outcomes.stocks[0].change_percent or 0.0) / 100
                assert earned == pytest.approx(life.pnl / life.steps[0].book.balance, abs=0.002)
