"""Changes of a group that a fit judge does not, or hardly, notice. Pure: the group itself stays as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from data_bridge.models import AgentTrajectory, MarketOutcomes, PredictionOutcome, Step, StockOutcome
from trainer.types import Group

_PADDING = (
    " I considered this with great care. I weighed the available information, thought about the possible scenarios,"
    " balanced opportunity against risk, and reflected on my experience before I came to this conclusion."
    " In summary, after a comprehensive, thorough and well-structured analysis, I stand by this decision."
)
_OPPOSITE = {"YES": "NO", "NO": "YES", "TRUE": "FALSE", "FALSE": "TRUE"}


def without_hidden_knowledge(group: Group) -> Group:
    """The group without ``gameKnowledge``: it cannot be turned round, so no probe may depend on it."""
    return _with(group, [msgspec.structs.replace(member, ground_truth=None) for member in group.trajectories])


def outcome_flipped(group: Group) -> Group:
    """The same decisions on the same news, in an hour that ended the other way."""
    members = [_profit_reversed(member) for member in group.trajectories]
    return Group(group.group_id, group.window_id, tuple(members), _reversed(group.outcomes))


def padded(group: Group) -> tuple[Group, frozenset[str]]:
    """Every other agent says the same decision at greater length; also who those are."""
    chosen = frozenset(member.trajectory_id for member in group.trajectories[::2])
    members = [_saying(member, _PADDING) if member.trajectory_id in chosen else member for member in group.trajectories]
    return _with(group, members), chosen


def attacked(group: Group, trajectory_id: str, text: str) -> Group:
    """One agent's words end with ``text``."""
    return _with(
        group,
        [
            _saying(member, f" {text}") if member.trajectory_id == trajectory_id else member
            for member in group.trajectories
        ],
    )


def _with(group: Group, members: Sequence[AgentTrajectory]) -> Group:
    return Group(group.group_id, group.window_id, tuple(members), group.outcomes)


def _saying(member: AgentTrajectory, words: str) -> AgentTrajectory:
    """``member`` with ``words`` after its reasons and its replies; the decision itself is untouched."""
    steps = [_step_saying(step, words) for step in member.steps]
    return _changed(member, words, steps=steps)


def _step_saying(step: Step, words: str) -> Step:
    action = step.action
    if action is not None:
        action = msgspec.structs.replace(action, reasoning=(action.reasoning or "Decided on the news.") + words)
    calls = [msgspec.structs.replace(call, response=call.response + words) for call in step.llm_calls]
    return msgspec.structs.replace(step, action=action, llm_calls=calls)


def _profit_reversed(member: AgentTrajectory) -> AgentTrajectory:
    known = [step.state.lifetime_pnl for step in member.steps if step.state.lifetime_pnl is not None]
    start = known[0] if known else 0.0

    def turned(value: float | None) -> float | None:
        return None if value is None else start - (value - start)

    steps = []
    for step in member.steps:
        state = msgspec.structs.replace(step.state, lifetime_pnl=turned(step.state.lifetime_pnl))
        action = None if step.action is None else msgspec.structs.replace(step.action, correctness=None)
        steps.append(msgspec.structs.replace(step, state=state, action=action))
    return _changed(member, "reversed", steps=steps, lifetime_pnl=turned(member.lifetime_pnl))


def _changed(member: AgentTrajectory, how: str, **changes: object) -> AgentTrajectory:
    digest = hashlib.blake2b(f"{member.content_hash}\x1f{how}".encode(), digest_size=16).hexdigest()
    return msgspec.structs.replace(member, content_hash=digest, **changes)


def _reversed(outcomes: MarketOutcomes) -> MarketOutcomes:
    return MarketOutcomes(
        stocks=tuple(_stock_reversed(stock) for stock in outcomes.stocks),
        predictions=tuple(_prediction_reversed(market) for market in outcomes.predictions),
    )


def _stock_reversed(stock: StockOutcome) -> StockOutcome:
    change = None if stock.change_percent is None else -stock.change_percent
    end = stock.end_price
    if stock.start_price and end is not None:
        # A fall by as much as it rose, kept above nothing for a stock that had more than doubled.
        end = max(stock.start_price * 2 - end, 0.01 * stock.start_price)
    return msgspec.structs.replace(stock, change_percent=change, end_price=end, sentiment=None)


def _prediction_reversed(market: PredictionOutcome) -> PredictionOutcome:
    outcome = None if market.outcome is None else _OPPOSITE.get(market.outcome.strip().upper(), market.outcome)
    probability = None if market.final_probability is None else 1 - market.final_probability
    return msgspec.structs.replace(market, outcome=outcome, final_probability=probability)
