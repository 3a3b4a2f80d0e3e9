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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_bridge.models import DECISIONS, AgentTrajectory, ChatMessage, LLMCall, Step, WindowOutcomes
from data_bridge.worlds.world import World, brief
from trainer.judge.text import clean, encode, encode_exactly
from trainer.types import Group, JudgeIdentity

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
        parts += [f"world {self.group.world.version}"] if self.group.world.version else []
        parts += [f"{self.group.hours} hours"] if self.group.hours != 1 else []
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
        blind = _group_view(group, purposes, "", WindowOutcomes(), is_blind=True, numbered=numbered)
    truth = encode(group.world.shown_facts(group.window_id, group.trajectories, group.outcomes))
    view = _group_view(group, purposes, truth, group.outcomes, is_blind=False, numbered=numbered)
    return replace(view, blind=blind)


def _group_view(
    group: Group, purposes: Collection[str], truth: str, outcomes: WindowOutcomes, *, is_blind: bool, numbered: bool
) -> GroupView:
    views = [
        _trajectory_view(one, outcomes, group.world, purposes, is_blind=is_blind, numbered=numbered)
        for one in group.trajectories
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
    trajectory: AgentTrajectory,
    outcomes: WindowOutcomes,
    world: World,
    purposes: Collection[str],
    *,
    is_blind: bool,
    numbered: bool,
) -> TrajectoryView:
    fields: dict[str, list[str]] = {}
    fields["claimed"] = [_claims(world.claims(trajectory, is_blind=is_blind))]
    result = {} if is_blind else world.result(trajectory, outcomes)
    if result:
        fields["result"] = [encode(result)]
    steps = [
        _step_fields(step, trajectory, outcomes, world, purposes, is_blind=is_blind)
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
    return replace(
        view, whole=whole, digest=digest, deed=_deed(world.rests_on_claims(trajectory, outcomes), fields, steps, whole)
    )


def _deed(
    rests_on_claims: bool,
    fields: dict[str, list[str]],
    steps: Sequence[dict[str, list[str]]],
    whole: str,
) -> str:
    """What is left without the claims, unless the decision rests on them: then all counts."""
    if rests_on_claims:
        return _digest(whole)
    bare = [_object({name: value for name, value in step.items() if name != "claimed"}) for step in steps]
    return _digest("".join([*fields.get("result", ()), *_joined(bare)]))


def _step_fields(
    step: Step,
    trajectory: AgentTrajectory,
    outcomes: WindowOutcomes,
    world: World,
    purposes: Collection[str],
    *,
    is_blind: bool,
) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    calls = _calls_shown(step, purposes)
    if len(calls) > 1:
        fields["earlier_calls"] = ["[", *_joined([_object(_call_fields(call)) for call in calls[:-1]]), "]"]
    heard = _call_fields(calls[-1]) if calls else {}
    if "saw" in heard:
        fields["saw"] = heard["saw"]
    action = step.action
    state = world.step_claims(step, trajectory, is_blind=is_blind)
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
    elif not is_blind and (result := world.step_result(step, trajectory, outcomes)) is not None:
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


def _claims(figures: Mapping[str, Any]) -> str:
    return encode({name: _claim(figure) for name, figure in figures.items() if figure is not None})


def _claim(figure: object) -> object:
    """A figure as claimed; a text or a structure in brief."""
    if isinstance(figure, bool):
        return figure
    if isinstance(figure, int | float):
        return figure if abs(figure) <= _MAX_CLAIM else "absurd"
    return clean(brief(figure))


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


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
