"""What the judge is shown of a group: the ground truth once, and a summary of each agent's hour.

A view is the complete information about a group before any shortening, in an order that does not depend on how the
group was listed. It is hashed for the verdict's key, so any change that the judge could see gives a new key.
Names of agents are never shown: a judge that knows who decided can be biased.

Two rules keep an agent from judging itself. *Truth comes only from the game's own tables*: the ground truth and every
``result`` are computed from them (or by our own replay), what a row says of its books stands under ``claimed``, and the
rest is told as what the agent saw, decided and said. *Trained equals judged*: the reply of every call that is trained
is shown, whole and character by character.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_bridge.models import DECISIONS, AgentTrajectory, ChatMessage, LLMCall, MarketOutcomes, Step, StockOutcome
from data_bridge.stakes import Deed, claimed_price, net_stakes, read_action, readings_of
from trainer.judge.text import clean, encode, encode_exactly
from trainer.types import Group, JudgeIdentity

NEWS_SHOWN = 12
"""Maximum number of headlines per stock in the ground truth, the earliest first."""

_MAX_CLAIM = 1e15  # a claimed figure beyond this is as meaningless as NaN


class _Long(str):
    """A text that may be shortened: what the agent saw, and its reasons. Everything else is shown unchanged."""


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """A trajectory as escaped JSON, taken apart into texts that may be shortened and what stands around them."""

    trajectory: AgentTrajectory
    texts: tuple[str, ...]
    """What the agent saw and its reasons, in the order shown."""
    around: tuple[str, ...]
    """The JSON before, between and after ``texts``."""
    whole: str
    """The whole trajectory, nothing shortened."""
    digest: str
    deed: str
    """Digest of what it saw, said and did and what came of it, without what it claims of its books."""

    @property
    def decisions(self) -> int:
        """Steps that are shown, and may be scored by themselves."""
        return sum(map(decides, self.trajectory.steps))

    def shown(self, texts: Sequence[str]) -> str:
        """The trajectory as escaped JSON, with these texts in place of its own."""
        parts = [self.around[0]]
        for text, after in zip(texts, self.around[1:], strict=True):
            parts += [encode(text), after]
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The trajectories sorted by their digests, under one ground truth."""

    group: Group
    ground_truth: str
    """Empty in the first of two passes, which does not show what happened afterwards."""
    trajectories: tuple[TrajectoryView, ...]
    blind: GroupView | None = None
    """The same group as the first of two passes shows it; None for a judge of one pass."""

    @property
    def is_blind(self) -> bool:
        return not self.ground_truth

    @property
    def is_uniform(self) -> bool:
        """Whether all members did the same on the same grounds with the same result: then nothing tells them apart.

        Never of a single one, which is judged for its own sake and not compared.
        """
        return len(self.trajectories) > 1 and len({view.deed for view in self.trajectories}) == 1

    def key(self, identity: JudgeIdentity, purpose: str = "") -> str:
        """The key of a verdict on this group, together with the number of the order."""
        parts = [view.digest for view in self.trajectories]
        parts += [_digest(self.ground_truth), identity.judge, identity.rubric, identity.rubric_version]
        parts += [identity.prompt_version, purpose]
        return _digest("\x1f".join(parts))


def view_of(
    group: Group, purposes: Collection[str] = DECISIONS, passes: int = 1, *, numbered: bool = False
) -> GroupView:
    """The group as the judge sees it; ``purposes`` are those of the calls that make decisions, and are trained.

    With two ``passes`` it has a second view, in which no field tells what happened afterwards. ``numbered`` steps are
    to be scored by themselves.
    """
    blind = None
    if passes > 1:
        blind = _group_view(group, purposes, "", MarketOutcomes(), is_blind=True, numbered=numbered)
    truth = encode(_ground_truth(group))
    view = _group_view(group, purposes, truth, group.outcomes, is_blind=False, numbered=numbered)
    return replace(view, blind=blind)


def _group_view(
    group: Group, purposes: Collection[str], truth: str, outcomes: MarketOutcomes, *, is_blind: bool, numbered: bool
) -> GroupView:
    views = [
        _trajectory_view(one, outcomes, purposes, is_blind=is_blind, numbered=numbered) for one in group.trajectories
    ]
    views.sort(key=lambda view: (view.digest, view.trajectory.trajectory_id))
    return GroupView(group=group, ground_truth=truth, trajectories=tuple(views))


def decides(step: Step) -> bool:
    """Whether this step contains a decision at all; a mere record of the accounts does not."""
    return step.action is not None or bool(step.llm_calls)


def _calls_shown(step: Step, purposes: Collection[str]) -> list[LLMCall]:
    """The calls that made the step's decision: all that are trained; if there are none, the last one."""
    return [call for call in step.llm_calls if call.purpose in purposes] or step.llm_calls[-1:]


def _trajectory_view(
    trajectory: AgentTrajectory, outcomes: MarketOutcomes, purposes: Collection[str], *, is_blind: bool, numbered: bool
) -> TrajectoryView:
    fields: dict[str, list[str]] = {}
    books = {"starting_balance": trajectory.starting_balance}
    if trajectory.replayed_pnl is None and not is_blind:
        books["profit_in_this_window"] = trajectory.window_pnl
        books["profit_percent_of_balance"] = _percent(trajectory.window_pnl, trajectory.starting_balance)
    fields["claimed"] = [_claims(books)]
    result = {} if is_blind else _result(trajectory, outcomes)
    if result:
        fields["result"] = [encode(result)]
    steps = [
        _step_fields(step, trajectory, outcomes, purposes, is_blind=is_blind)
        for step in trajectory.steps
        if decides(step)
    ]
    if numbered:
        steps = [{"step": [str(number)], **step} for number, step in enumerate(steps, start=1)]
    fields["steps"] = ["[", *_joined([_object(step) for step in steps]), "]"]
    texts: list[str] = []
    around: list[list[str]] = [[]]
    for piece in _object(fields):
        if isinstance(piece, _Long):
            texts.append(piece)
            around.append([])
        else:
            around[-1].append(piece)
    view = TrajectoryView(trajectory, tuple(texts), tuple("".join(parts) for parts in around), "", "", "")
    whole = view.shown(texts)
    digest = _digest(f"{trajectory.content_hash}\x1f{whole}")
    return replace(view, whole=whole, digest=digest, deed=_deed(trajectory, outcomes, fields, steps, whole))


def _deed(
    trajectory: AgentTrajectory,
    outcomes: MarketOutcomes,
    fields: dict[str, list[str]],
    steps: Sequence[dict[str, list[str]]],
    whole: str,
) -> str:
    """What is left without the claims. An amount of money is another decision for another balance: then all counts."""
    readings = readings_of(trajectory.actions, outcomes)
    if any(reading.stake is not None and reading.stake.share is None for reading in readings):
        return _digest(whole)
    bare = [_object({name: value for name, value in step.items() if name != "claimed"}) for step in steps]
    return _digest("".join([*fields.get("result", ()), *_joined(bare)]))


def _result(trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> dict[str, float]:
    """What the hour earned by the game's own prices, where that follows from the decisions alone."""
    if trajectory.replayed_pnl is not None:
        share = _percent(trajectory.replayed_pnl, trajectory.starting_balance)
        return {"profit_in_this_window": trajectory.replayed_pnl} | (
            {} if share is None else {"profit_percent_of_balance": share}
        )
    readings = readings_of(trajectory.actions, outcomes)
    if not all(reading.deed in (Deed.STAKE, Deed.NO_TRADE, Deed.FAILED) for reading in readings):
        return {}
    stakes = [reading.stake for reading in readings if reading.stake is not None]
    if not stakes or any(stake.is_bet or stake.share is None for stake in stakes):
        return {}
    held = net_stakes(readings, unsized=0.0) or []
    return {"profit_percent_of_balance": 100 * sum((stake.share or 0.0) * stake.gain for stake in held)}


def _percent(money: float | None, balance: float | None) -> float | None:
    """A profit as a share of the balance: dollars alone say who is rich. Replies to one decision have one balance."""
    return None if money is None or balance is None or balance <= 0 else 100 * money / balance


def _step_fields(
    step: Step, trajectory: AgentTrajectory, outcomes: MarketOutcomes, purposes: Collection[str], *, is_blind: bool
) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    calls = _calls_shown(step, purposes)
    if len(calls) > 1:
        fields["earlier_calls"] = ["[", *_joined([_object(_call_fields(call)) for call in calls[:-1]]), "]"]
    heard = _call_fields(calls[-1]) if calls else {}
    if "saw" in heard:
        fields["saw"] = heard["saw"]
    action = step.action
    state: dict[str, float | None] = {"balance": step.state.balance, "open_positions": step.state.open_positions}
    if action is not None and trajectory.replayed_pnl is None:
        state["price"] = claimed_price(action)
    if any(figure is not None for figure in state.values()):
        fields["claimed"] = [_claims(state)]
    given = [action.reasoning if action else None, step.reasoning, *(call.reasoning for call in calls[-1:])]
    reasons = next((text for text in given if text and text.strip()), None)
    if reasons is not None:
        fields["reasons"] = [_Long(clean(reasons))]
    if "said" in heard:
        fields["said"] = heard["said"]
    if action is not None:
        decided = {"action": action.kind, **({"with": action.parameters} if action.parameters else {})}
        fields["decided"] = [encode(decided)]
    if action is None or action.is_pending:
        fields["failed"] = [encode("no action came of it")]
    elif action.failure is not None:
        fields["failed"] = [encode(action.failure)]
    elif not is_blind and (result := read_action(action, outcomes).result) is not None:
        fields["result"] = [encode(result)]
    return fields


def _call_fields(call: LLMCall) -> dict[str, list[str]]:
    """What the model saw before it replied, and the whole reply as it is trained."""
    fields: dict[str, list[str]] = {}
    observed = _observation(call)
    if observed:
        fields["saw"] = [_Long(observed)]
    said = {"text": call.response, "tool_calls": call.tool_calls} if call.tool_calls else call.response
    fields["said"] = [encode_exactly(said)]
    return fields


def _claims(figures: dict[str, float | None]) -> str:
    known = {name: figure for name, figure in figures.items() if figure is not None}
    return encode({name: figure if abs(figure) <= _MAX_CLAIM else "absurd" for name, figure in known.items()})


def _object(fields: dict[str, list[str]]) -> list[str]:
    return ["{", *_joined([[f'"{name}":', *value] for name, value in fields.items()]), "}"]


def _joined(parts: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, part in enumerate(parts):
        if number:
            yield ","
        yield from part


def _observation(call: LLMCall) -> str:
    """The last message to the model before it decided; instructions and worked examples come earlier."""
    told = [message for message in call.chat() if message.role in ("user", "tool")]
    return clean(_text_of(told[-1])) if told else ""


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content or []
    return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in parts)


def _ground_truth(group: Group) -> dict[str, Any]:
    """What really happened, from the game's tables alone: nothing of a trajectory comes in here."""
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


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
