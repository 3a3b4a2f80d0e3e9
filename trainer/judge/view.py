"""What the judge is shown of a group: the ground truth once, and a summary of each agent's hour.

A view is the complete information about a group before any shortening, in an order that does not depend on how the
group was listed. It is hashed for the verdict's key, so any change that the judge could see gives a new key.
Names of agents are never shown: a judge that knows who decided can be biased.

The result of a decision follows from the action and the window's outcomes. Games name their actions and parameters
differently (``BUY``, ``OPEN_LONG``, ``TRADE`` with a ``side``); what cannot be read stays unknown and is never assumed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_bridge.models import (
    DECISIONS,
    Action,
    AgentTrajectory,
    ChatMessage,
    LLMCall,
    MarketOutcomes,
    Step,
    StockOutcome,
)
from trainer.judge.text import clean, encode
from trainer.types import Group, JudgeIdentity

NEWS_SHOWN = 12
"""Maximum number of headlines per stock in the ground truth, the earliest first."""

_UNFINISHED = "PENDING"
_FOR = frozenset({"BUY", "LONG", "YES", "UP"})
_AGAINST = frozenset({"SELL", "SHORT", "NO", "DOWN"})
_CLOSING = frozenset({"CLOSE", "CANCEL", "EXIT"})
_TICKER = ("ticker", "stockTicker", "symbol", "stock", "asset")
_MARKET = ("marketId", "market_id", "predictionMarketId", "questionId", "market")
_SIDE = ("side", "direction", "outcome", "prediction", "position")
_AMOUNT = ("amount", "value", "usd", "cost", "collateral", "size")
_PERCENT = ("percent", "percentage", "sizePercent", "size_percent")
_SHARE = ("fraction", "share")
_MAX_NUMBER = 1e15  # an agent's number beyond this is as meaningless as NaN
_PRICE = ("price", "executionPrice", "entryPrice", "avgPrice", "fillPrice")


@dataclass(frozen=True, slots=True)
class Stake:
    """One stake that an agent took. ``direction`` is +1 for the market (long, yes), -1 against it."""

    market: str
    direction: int
    share: float | None
    """Share of the balance at the start of the window; None if the size cannot be read."""
    gain: float | None
    """Return of the stake by the end of the window, as a fraction; None if it is unknown."""
    result: str


@dataclass(frozen=True, slots=True)
class StepView:
    """One decision. Only ``saw`` may be shortened; the rest, as escaped JSON, is shown unchanged."""

    saw: str
    decision: str

    def shown(self, saw: str) -> str:
        """The step as escaped JSON, with this observation in place of its own."""
        if not saw:
            return self.decision
        return f'{{"saw":{encode(saw)},{self.decision[1:]}' if self.decision != "{}" else f'{{"saw":{encode(saw)}}}'


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    trajectory: AgentTrajectory
    summary: str
    steps: tuple[StepView, ...]
    whole: str
    """The whole trajectory as escaped JSON, nothing shortened."""
    digest: str

    def shown(self, observations: Sequence[str]) -> str:
        """The trajectory as escaped JSON, with these observations in place of its own."""
        if all(step.saw == saw for step, saw in zip(self.steps, observations, strict=True)):
            return self.whole
        return _body(self.summary, [step.shown(saw) for step, saw in zip(self.steps, observations, strict=True)])


@dataclass(frozen=True, slots=True)
class GroupView:
    """The trajectories sorted by their digests, under one ground truth."""

    group: Group
    ground_truth: str
    trajectories: tuple[TrajectoryView, ...]

    def key(self, identity: JudgeIdentity, purpose: str = "") -> str:
        """The key of a verdict on this group, together with the number of the order."""
        parts = [view.digest for view in self.trajectories]
        parts += [_digest(self.ground_truth), identity.judge, identity.rubric, identity.rubric_version]
        parts += [identity.prompt_version, purpose]
        return _digest("\x1f".join(parts))


def view_of(group: Group, purposes: Collection[str] = DECISIONS) -> GroupView:
    """The group as the judge sees it; ``purposes`` are those of the calls that make decisions."""
    views = [_trajectory_view(trajectory, group.outcomes, purposes) for trajectory in group.trajectories]
    views.sort(key=lambda view: (view.digest, view.trajectory.trajectory_id))
    return GroupView(group=group, ground_truth=encode(_ground_truth(group)), trajectories=tuple(views))


def decision_call(step: Step, purposes: Collection[str]) -> LLMCall | None:
    """The model call that made the step's decision: the last one with one of ``purposes``, else the last one."""
    candidates = [call for call in step.llm_calls if call.purpose in purposes] or step.llm_calls
    return candidates[-1] if candidates else None


def is_valid(step: Step) -> bool:
    """Whether the step's decision could be executed."""
    return step.action is not None and step.action.kind != _UNFINISHED and step.action.failure is None


def decides(step: Step) -> bool:
    """Whether this step contains a decision at all; a mere record of the accounts does not."""
    return step.action is not None or bool(step.llm_calls)


def stake_of(action: Action, trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> Stake | None:
    """The stake that ``action`` took, or None if it took none (it failed, closed one, or was no trade)."""
    words = set(re.split(r"[^A-Z]+", action.kind))
    if action.failure is not None or words & _CLOSING:
        return None
    direction = _direction(words, action.parameters)
    if direction is None:
        return None
    share = _share_of_balance(action.parameters, trajectory.starting_balance)
    market_id = _text(action.parameters, _MARKET)
    ticker = _text(action.parameters, _TICKER)
    if ticker is not None:
        return _in_stock(ticker.lstrip("$").upper(), direction, share, _entry_price(action), outcomes)
    if market_id is not None:
        return _in_prediction(market_id, direction, share, outcomes)
    return None


def stakes_of(trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> list[Stake]:
    found = (stake_of(action, trajectory, outcomes) for action in trajectory.actions)
    return [stake for stake in found if stake is not None]


def _trajectory_view(
    trajectory: AgentTrajectory, outcomes: MarketOutcomes, purposes: Collection[str]
) -> TrajectoryView:
    pnl = trajectory.window_pnl
    summary = encode(
        {"starting_balance": trajectory.starting_balance, "profit_in_this_window": "unknown" if pnl is None else pnl}
    )
    steps = tuple(_step_view(step, trajectory, outcomes, purposes) for step in trajectory.steps if decides(step))
    whole = _body(summary, [step.shown(step.saw) for step in steps])
    return TrajectoryView(trajectory, summary, steps, whole, _digest(f"{trajectory.content_hash}\x1f{whole}"))


def _body(summary: str, steps: Sequence[str]) -> str:
    return f'{summary[:-1]},"steps":[{",".join(steps)}]}}'


def _step_view(
    step: Step, trajectory: AgentTrajectory, outcomes: MarketOutcomes, purposes: Collection[str]
) -> StepView:
    call = decision_call(step, purposes)
    decision: dict[str, Any] = {}
    if step.state.balance is not None:
        decision["balance"] = step.state.balance
    if step.state.open_positions is not None:
        decision["open_positions"] = step.state.open_positions
    action = step.action
    if action is not None:
        decision["decided"] = {"action": action.kind, **({"with": action.parameters} if action.parameters else {})}
    given = [action.reasoning if action else None, step.reasoning, call.reasoning if call else None]
    reasons = next((text for text in given if text and text.strip()), None)
    if reasons is not None:
        decision["reasons"] = reasons
    if call is not None and (reasons is None or not is_valid(step)):
        decision["said"] = call.response
    if action is None or action.kind == _UNFINISHED:
        decision["failed"] = "no action came of it"
    elif action.failure is not None:
        decision["failed"] = action.failure
    else:
        stake = stake_of(action, trajectory, outcomes)
        if stake is not None:
            decision["came_of_it"] = stake.result
    return StepView(saw=_observation(call), decision=encode(decision))


def _observation(call: LLMCall | None) -> str:
    """The last message to the model before it decided; instructions and worked examples come earlier."""
    if call is None:
        return ""
    told = [message for message in call.chat() if message.role in ("user", "tool")]
    return clean(_text_of(told[-1])) if told else ""


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in parts)


def _ground_truth(group: Group) -> dict[str, Any]:
    outcomes = group.outcomes
    truth: dict[str, Any] = {
        "window": group.window_id,
        "stocks": [_stock(stock) for stock in outcomes.stocks],
        "predictions": [
            {
                "market": market.market_id,
                "question": market.question,
                "resolved": market.outcome or "not resolved",
                "final_probability": market.final_probability,
            }
            for market in outcomes.predictions
        ],
    }
    known = _game_knowledge(group.trajectories)
    if known:
        truth["game_knowledge"] = known
    return {name: part for name, part in truth.items() if part}


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


def _game_knowledge(trajectories: Sequence[AgentTrajectory]) -> dict[str, Any]:
    """What the game logged about its hidden state, merged over the group: all of it describes the same hour."""
    merged: dict[str, Any] = {}
    for trajectory in sorted(trajectories, key=lambda trajectory: trajectory.content_hash):
        for name, value in (trajectory.ground_truth or {}).items():
            if isinstance(value, dict) and isinstance(merged.get(name, {}), dict):
                merged[name] = {**value, **merged.get(name, {})}
            else:
                merged.setdefault(name, value)
    return merged


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _in_stock(ticker: str, direction: int, share: float | None, entry: float | None, outcomes: MarketOutcomes) -> Stake:
    stock = next((stock for stock in outcomes.stocks if stock.ticker.lstrip("$").upper() == ticker), None)
    if stock is None:
        return Stake(ticker, direction, share, None, "not known: no outcome of this market")
    start = entry or stock.start_price
    move: float | None = None
    if start and stock.end_price is not None:
        move = stock.end_price / start - 1
    elif stock.change_percent is not None:
        move = stock.change_percent / 100
    if move is None:
        return Stake(ticker, direction, share, None, "not known: no price at the end of the window")
    since = "since the trade" if entry else "over the window"
    told = f"price {move:+.2%} {since}, so the stake came to {direction * move:+.2%} by its end"
    return Stake(ticker, direction, share, direction * move, told)


def _in_prediction(market_id: str, direction: int, share: float | None, outcomes: MarketOutcomes) -> Stake:
    market = next((market for market in outcomes.predictions if market.market_id == market_id), None)
    resolved = (market.outcome or "").strip().upper() if market else ""
    if resolved not in ("YES", "NO", "TRUE", "FALSE"):
        return Stake(market_id, direction, share, None, "not known: the market is not resolved")
    won = (direction > 0) == (resolved in ("YES", "TRUE"))
    told = f"resolved {resolved}: {'right' if won else 'wrong'}"
    return Stake(market_id, direction, share, None, told)


def _direction(words: set[str], parameters: Mapping[str, Any]) -> int | None:
    """``side`` and similar parameters decide, else the action's name. Buying ``NO`` is a stake against the market."""
    side = (_text(parameters, _SIDE) or "").strip().upper()
    for named in ({side}, words):
        if named & _AGAINST:
            return -1
        if named & _FOR:
            return 1
    return None


def _share_of_balance(parameters: Mapping[str, Any], balance: float | None) -> float | None:
    percent = _number(parameters, _PERCENT)
    if percent is not None:
        return percent / 100
    share = _number(parameters, _SHARE)
    if share is not None:
        return share
    amount = _number(parameters, _AMOUNT)
    return amount / balance if amount is not None and balance is not None and balance > 0 else None


def _entry_price(action: Action) -> float | None:
    result = action.result if isinstance(action.result, Mapping) else {}
    price = _number(result, _PRICE)
    return price if price is not None and price > 0 else None


def _text(values: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((values[name] for name in names if isinstance(values.get(name), str) and values[name].strip()), None)


def _number(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = values.get(name)
        if isinstance(value, str):
            try:
                value = float(value.strip().rstrip("%"))
            except ValueError:
                continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER:
            return abs(float(value))
    return None
