"""Decision points of held-out windows, and trajectories with a different reply there.

A decision point is one LLM call of a log: exactly the messages that an agent saw. Every policy under test answers the
same ones. ``with_reply`` then replaces the logged reply with another, under an opaque name, so that any judge can
compare the replies without knowing whose they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

from data_bridge.lesson_prompts import decided_at, without_lessons
from data_bridge.models import Action, AgentTrajectory, ChatMessage, LLMCall, NotText, Step, WindowOutcomes
from data_bridge.quality import CheckedWindow
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World

DEFAULT_MAX_TOKENS = 256
"""For calls whose writer did not log how long the reply could be, or no length that a reply can have."""
_MAX_REPLY_TOKENS = 2_048
"""An agent writes its own limit: a larger one must not take the whole context, or the evaluation's time."""


@dataclass(frozen=True, slots=True)
class DecisionPoint:
    """One logged call, which every policy answers again."""

    trajectory: AgentTrajectory
    step_index: int
    call_index: int
    outcomes: WindowOutcomes
    world: World = MARKET

    @property
    def window_id(self) -> str:
        return self.trajectory.window_id

    @property
    def step(self) -> Step:
        return self.trajectory.steps[self.step_index]

    @property
    def call(self) -> LLMCall:
        return self.step.llm_calls[self.call_index]

    @property
    def messages(self) -> list[ChatMessage]:
        """What the agent was asked, without the lessons that it was shown: those are its policy's."""
        return without_lessons(self.call.seen())

    @property
    def at(self) -> datetime:
        """When it was decided, in the game's clock."""
        return decided_at(self.trajectory, self.step_index)

    @property
    def role(self) -> str | None:
        return self.trajectory.role or self.step.state.role

    @property
    def max_tokens(self) -> int:
        logged = self.call.max_tokens
        return min(int(logged), _MAX_REPLY_TOKENS) if logged and 1 <= logged < float("inf") else DEFAULT_MAX_TOKENS

    @property
    def key(self) -> str:
        """The point's name in seeds and aliases; the same in every evaluation."""
        return f"{self.trajectory.trajectory_id}/{self.step_index}/{self.call_index}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a reply: its action, and what that would have earned given what really happened."""

    action: Action
    pnl: float | None
    is_valid: bool
    """Whether the reply is an action at all."""
    is_blocked: bool | None
    """Whether the safety guard stopped the action; None where there is none to ask."""


class Replay(Protocol):
    """Replays a decision point. Only a world that can be rebuilt has one."""

    def knows(self, point: DecisionPoint) -> bool:
        """Whether this point can be replayed."""
        ...

    def play(self, point: DecisionPoint, reply: str) -> Replayed | None:
        """The result of ``reply``, or None for a point that is not of this world."""
        ...


def decision_points(
    checked: CheckedWindow,
    *,
    purposes: Collection[str],
    max_points: int,
    seed: int,
    agents: Collection[str] | None = None,
) -> tuple[DecisionPoint, ...]:
    """At most ``max_points`` decision points of a window: first one of each agent, then a second of each, and so on.
    With ``agents``, of these agents only.

    A hash of their names decides which ones, so that a later evaluation uses the same points.
    """
    per_agent = [
        sorted(_of_trajectory(trajectory, checked, purposes), key=lambda point: _digest(seed, point.key))
        for trajectory in sorted(checked.usable, key=lambda own: _digest(seed, own.trajectory_id))
        if agents is None or trajectory.agent_id in agents
    ]
    chosen: dict[bytes, DecisionPoint] = {}
    layers = sorted(((layer, place) for place, own in enumerate(per_agent) for layer in range(len(own))))
    for layer, place in layers:
        if len(chosen) == max_points:
            break
        point = per_agent[place][layer]
        chosen.setdefault(msgspec.json.encode(point.messages), point)
    return tuple(chosen.values())


def _of_trajectory(
    trajectory: AgentTrajectory, checked: CheckedWindow, purposes: Collection[str]
) -> Iterator[DecisionPoint]:
    """The last call with one of the purposes in each step: the one that led to the action."""
    for step_index, step in enumerate(trajectory.steps):
        wanted = [
            index for index, call in enumerate(step.llm_calls) if call.purpose in purposes and _can_be_asked(call)
        ]
        if wanted:
            yield DecisionPoint(trajectory, step_index, wanted[-1], checked.window.outcomes, checked.world)


def _can_be_asked(call: LLMCall) -> bool:
    try:
        return bool(call.seen())
    except NotText:
        return False


_NOT_CARRIED_OUT = Action(action_type="REPLY", success=True)
"""A reply that can no longer be executed is not a failed action; the judge reads its text."""


def with_reply(point: DecisionPoint, reply: str, replayed: Replayed | None, *, alias: str) -> AgentTrajectory:
    """The one-step trajectory of an agent called ``alias`` that gave ``reply`` at ``point``.

    What followed the logged reply was caused by it, so it is left out; so is everything that would reveal which model
    answered (names, versions, tokens, times).
    """
    call = msgspec.structs.replace(
        point.call,
        **_asked(point),
        response=reply,
        model="",
        model_version=None,
        reasoning=None,
        call_id=None,
        latency_ms=None,
        action_type=replayed.action.kind if replayed is not None else None,
        completion_tokens=None,
        tool_calls=None,
        completion_token_ids=None,
        completion_logprobs=None,
        logprobs_temperature=None,
    )
    before = point.step.state.lifetime_pnl or 0.0
    step = msgspec.structs.replace(
        point.step,
        state=msgspec.structs.replace(point.step.state, lifetime_pnl=before),
        llm_calls=[*point.step.llm_calls[: point.call_index], call],
        action=replayed.action if replayed is not None else _NOT_CARRIED_OUT,
        reward=None,
        reasoning=None,
    )
    pnl = replayed.pnl if replayed is not None else None
    content = msgspec.json.encode(step)
    return msgspec.structs.replace(
        point.trajectory,
        trajectory_id=alias,
        agent_id=alias,
        agent_name=None,
        steps=[step],
        content_hash=hashlib.blake2b(content + repr(pnl).encode(), digest_size=16).hexdigest(),
        size_bytes=len(content),
        final_status="completed",
        final_balance=None,
        lifetime_pnl=before + pnl if pnl is not None else None,
        replayed_pnl=pnl,
        is_evaluation=True,
    )


def _asked(point: DecisionPoint) -> dict[str, object]:
    """The question as every reply's: who was shown which lessons would tell the judge who answered."""
    system = without_lessons([ChatMessage(role="system", content=point.call.system_prompt)])
    plain = {"system_prompt": system[0].text() if system else ""}
    return {**plain, "messages": point.messages if point.call.messages else None}


def alias_of(point: DecisionPoint, role: str, sample: int, seed: int) -> str:
    """An id that is the same in every evaluation of this point and reveals nothing without the seed."""
    return _digest(seed, f"alias/{point.key}/{role}/{sample}")[:16]


def blind_order(aliases: Sequence[str]) -> list[int]:
    """Positions in an order that reveals no identity: that of the aliases, which are hashes."""
    return sorted(range(len(aliases)), key=lambda index: aliases[index])


def _digest(seed: int, name: str) -> str:
    return hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).hexdigest()
