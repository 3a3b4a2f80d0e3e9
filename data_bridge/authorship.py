"""Whose policy wrote a logged reply, how it was sampled, and whether it ended by itself.

A log names models in many ways. ``Lineage`` turns a name into a step of the trained model: a checkpoint's name has it;
the base model, under any of its names, is step 0; and a name without a step means what was promoted when the reply was
written. A row can only lie about itself: what it gains by that is bounded where tokens are weighted (``packing``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from data_bridge.models import AgentTrajectory, Author, LLMCall

_CUT = frozenset({"length", "max_tokens", "content_filter", "cancelled", "error"})
"""Finish reasons of replies that the model did not end itself."""


@dataclass(frozen=True, slots=True)
class Served:
    """What the trained model's plain name meant for a time: a step, for all agents or only for a canary's."""

    step: int
    since: datetime
    until: datetime | None = None
    agents: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """The trained model's names: its own, those of its base model, and what it served when."""

    trainee: str
    base_names: frozenset[str] = frozenset()
    """As ``plain_names`` writes them."""
    served: tuple[Served, ...] | None = None
    """None: not known, so a name without a step has none."""

    def author(self, call: LLMCall, trajectory: AgentTrajectory) -> Author:
        """Who wrote ``call``: a step of the trained model where that can be told, else whoever the log names."""
        named = call.author
        if named.model == self.trainee:
            return named if named.step is not None else Author(named.model, self._served_to(call, trajectory))
        return Author(self.trainee, 0) if _plain(call.model) in self.base_names else named

    def _served_to(self, call: LLMCall, trajectory: AgentTrajectory) -> int | None:
        """The step that the plain name meant to this agent then: before the first promotion, the base model."""
        if self.served is None:
            return None
        moment = _moment(call, trajectory)
        meant = [one for one in self.served if one.since <= moment and (one.until is None or moment < one.until)]
        own = [one for one in meant if one.agents is not None and trajectory.agent_id in one.agents]
        common = [one for one in meant if one.agents is None]
        return max(own or common, key=lambda one: one.since).step if own or common else 0


def plain_names(names: Collection[str]) -> frozenset[str]:
    """``names`` in the one spelling that is compared: no organisation or folder, no case, no file ending."""
    return frozenset(plain for name in names if (plain := _plain(name)))


def _plain(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower().removesuffix(".gguf").removesuffix(":latest")


def _moment(call: LLMCall, trajectory: AgentTrajectory) -> datetime:
    """When ``call`` was made, if what it says of that lies within its trajectory; else when that began."""
    if call.timestamp is not None:
        try:
            said = datetime.fromtimestamp(call.timestamp / 1000, UTC)
        except (OverflowError, ValueError, OSError):
            return trajectory.start_time
        if trajectory.start_time <= said <= trajectory.end_time:
            return said
    return trajectory.start_time


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that a reply was drawn from: of which step, at which temperature, cut to which share of it."""

    step: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < _GREEDY


_GREEDY, _HOTTEST = 1e-3, 100.0
RAW = Sampling()
"""The policy's own distribution."""


def sampling_of(call: LLMCall, author: Author, *, policy_step: int) -> Sampling:
    """How ``call`` was sampled, as far as the log says; what it does not say is taken as left alone.

    A step that the trained model has not reached is none.
    """
    temperature = 1.0 if call.temperature is None or not 0 <= call.temperature < _HOTTEST else call.temperature
    top_p = 1.0 if call.top_p is None or not 0 < call.top_p <= 1 else call.top_p
    step = author.step if author.step is not None and author.step <= policy_step else None
    return Sampling(step, temperature, top_p)


def is_cut(call: LLMCall, tokens: int = 0) -> bool:
    """Whether the reply, of ``tokens`` if that is known, stopped at its limit: its end is not the model's decision."""
    if call.finish_reason is not None:
        return call.finish_reason.lower() in _CUT
    used = max(call.completion_tokens or 0, tokens)
    return bool(call.max_tokens) and used >= (call.max_tokens or 0)
