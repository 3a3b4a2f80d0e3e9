"""The market: stocks and prediction markets, as the first game has them. The default world.

Every answer is what the trainer did before there were worlds, to the byte: ``tests/integration/test_golden_market.py``.
"""

from __future__ import annotations

from typing import Any

from data_bridge.models import Action, AgentTrajectory, Step, StockOutcome, WindowOutcomes
from data_bridge.stakes import (
    Deed,
    choice_of,
    claimed_price,
    contradiction,
    gain_of,
    net_stakes,
    read_action,
    readings_of,
)
from data_bridge.worlds.world import Completeness, Known, Success, World, WorldWords

NEWS_SHOWN = 12
"""Maximum number of headlines per stock in the ground truth, the earliest first."""

_UNSIZED = 0.1  # the share of the balance that a stake counts for if its decision names none


class MarketWorld(World):
    """Agents trade; prices and resolutions are the facts, and profit by these prices is success."""

    name = "market"
    rubric = "trading"
    words = WorldWords("P&L", "outcomes", "balance", "the game's own prices")
    reads_markets = True
    reads_facts = False

    @property
    def version(self) -> str:
        """None: verdicts from before there were worlds stay valid."""
        return ""

    def known(self, facts: WindowOutcomes) -> Known:
        """A stock whose move is unknown makes it partial: its prices were due at the end of the window. An unresolved
        prediction market does not, since most of them run longer than one window. Without an answer it is missing."""
        if not facts.known:
            return Known(Completeness.MISSING, "no market with a known outcome")
        unknown = [stock.ticker for stock in facts.stocks if not stock.is_known]
        if unknown:
            return Known(Completeness.PARTIAL, f"no known move of {', '.join(unknown[:5])}")
        return Known(Completeness.COMPLETE)

    def contradiction(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        return contradiction(trajectory, facts)

    def is_valid(self, action: Action) -> bool:
        return read_action(action, WindowOutcomes()).deed not in (Deed.FAILED, Deed.UNKNOWN)

    def choice_of(self, action: Action) -> str | None:
        return choice_of(action)

    def answer_of(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        """What kinds of thing the agent did, for or against the market; None if none of its actions could be taken."""
        taken = [one for one in readings_of(trajectory.actions, facts) if one.deed is not Deed.FAILED]
        kinds = {one.deed.value if one.stake is None else f"stake {one.stake.direction:+d}" for one in taken}
        return "+".join(sorted(kinds)) or None

    def valid_share(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> float | None:
        """The share of its decisions that led to a possible action; None if one is no action of the game."""
        decided = [step for step in trajectory.steps if step.action is not None or step.llm_calls]
        deeds = [one.deed for one in readings_of(trajectory.actions, facts)]
        if Deed.UNKNOWN in deeds:
            return None
        return sum(deed is not Deed.FAILED for deed in deeds) / len(decided) if decided else 0.0

    def result_of(self, action: Action, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        return read_action(action, facts).result

    def worth(self, action: Action, facts: WindowOutcomes) -> float | None:
        stake = read_action(action, facts).stake
        return None if stake is None else stake.gain

    def success(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> Success | None:
        """Return on the balance by the game's prices, or by our own replay."""
        balance = trajectory.starting_balance
        if trajectory.replayed_pnl is not None and balance is not None and balance > 0:
            gain: float | None = trajectory.replayed_pnl / balance
        else:
            gain = gain_of(trajectory, facts)
        return None if gain is None else Success(gain, f"{gain:+.2%} of the balance")

    def side_of(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> int | None:
        """1 if its decisions made money by the game's prices, -1 if they lost some, 0 if neither; None if unknown."""
        profit = trajectory.replayed_pnl
        if profit is None:
            stakes = net_stakes(readings_of(trajectory.actions, facts), _UNSIZED)
            if stakes is None:
                return None
            profit = sum((stake.share or 0.0) * stake.gain for stake in stakes)
        return (profit > 0) - (profit < 0)

    @property
    def can_advise(self) -> bool:
        return True

    def is_right(self, action: Action, facts: WindowOutcomes) -> bool | None:
        """Whether the stake that ``action`` takes gained by the game's prices; None if it takes none that they
        decide."""
        gain = self.worth(action, facts)
        return None if gain is None or gain == 0 else gain > 0

    def shown_facts(self, window_id: str, members: object, facts: WindowOutcomes) -> dict[str, Any]:
        truth: dict[str, Any] = {
            "window": window_id,
            "stocks": [_stock(stock) for stock in facts.stocks],
            "predictions": [
                {
                    "market": market.market_id,
                    "question": market.question,
                    "resolved": market.outcome or "not resolved",
                    "final_probability": market.final_probability,
                }
                for market in facts.predictions
            ],
        }
        return {name: part for name, part in truth.items() if part}

    def result(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> dict[str, Any]:
        """What the hour earned by the game's own prices, where that follows from the decisions alone."""
        if trajectory.replayed_pnl is not None:
            share = _percent(trajectory.replayed_pnl, trajectory.starting_balance)
            return {"profit_in_this_window": trajectory.replayed_pnl} | (
                {} if share is None else {"profit_percent_of_balance": share}
            )
        readings = readings_of(trajectory.actions, facts)
        if not all(reading.deed in (Deed.STAKE, Deed.NO_TRADE, Deed.FAILED) for reading in readings):
            return {}
        stakes = [reading.stake for reading in readings if reading.stake is not None]
        if not stakes or any(stake.is_bet or stake.share is None for stake in stakes):
            return {}
        held = net_stakes(readings, unsized=0.0) or []
        return {"profit_percent_of_balance": 100 * sum((stake.share or 0.0) * stake.gain for stake in held)}

    def claims(self, trajectory: AgentTrajectory, *, is_blind: bool) -> dict[str, Any]:
        books = {"starting_balance": trajectory.starting_balance}
        if trajectory.replayed_pnl is None and not is_blind:
            books["profit_in_this_window"] = trajectory.window_pnl
            books["profit_percent_of_balance"] = _percent(trajectory.window_pnl, trajectory.starting_balance)
        return books

    def step_claims(self, step: Step, trajectory: AgentTrajectory, *, is_blind: bool) -> dict[str, Any]:
        state: dict[str, float | None] = {"balance": step.state.balance, "open_positions": step.state.open_positions}
        if step.action is not None and trajectory.replayed_pnl is None:
            state["price"] = claimed_price(step.action)
        return state

    def step_result(self, step: Step, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        return None if step.action is None else self.result_of(step.action, trajectory, facts)

    def rests_on_claims(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> bool:
        """An amount of money is another decision for another balance."""
        readings = readings_of(trajectory.actions, facts)
        return any(reading.stake is not None and reading.stake.share is None for reading in readings)


def _percent(money: float | None, balance: float | None) -> float | None:
    """A profit as a share of the balance: dollars alone say who is rich. Replies to one decision have one balance."""
    return None if money is None or balance is None or balance <= 0 else 100 * money / balance


def _stock(stock: StockOutcome) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "ticker": stock.ticker,
        "start": stock.start_price,
        "end": stock.end_price,
        "change_percent": stock.change_percent,
    }
    if stock.news:
        shown["news"] = [
            {"at": event.timestamp.strftime("%H:%M") if event.timestamp else None, "headline": event.headline}
            for event in stock.news[:NEWS_SHOWN]
        ]
    if len(stock.news) > NEWS_SHOWN:
        shown["headlines_left_out"] = len(stock.news) - NEWS_SHOWN
    return shown


MARKET = MarketWorld()
