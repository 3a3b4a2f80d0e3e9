"""Contestants with prompts of ours: what a decision was asked, begun by another prompt.

The last message that the agent was sent stays; what stands before it is the prompt, and is replaced. The control is a
random mutation of the prompt that would be replaced, drawn for each decision: what any change would be worth.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from data_bridge.agent_prompts import AgentTemplate, prompt_in, values_in, with_prompt
from data_bridge.database import Database
from data_bridge.models import ChatMessage
from trainer.evaluate.comparison import Contestant
from trainer.evaluate.decision_points import DecisionPoint
from trainer.evidence import Role
from trainer.inference.request import PromptRefused
from trainer.ledger.prompts import MOST_KNOWN, list_prompts, prompts_of
from trainer.types import Completion, Release

RandomPrompts = Mapping[str, Sequence[AgentTemplate]]
"""By role, what a random mutation could make of the prompt that is replaced."""


class SeesMessages(Contestant, Protocol):
    def messages_at(self, point: DecisionPoint) -> list[ChatMessage]: ...


class TemplateChoice(Protocol):
    """Which prompt a decision is begun by; None: the one that was logged."""

    def choose(self, point: DecisionPoint) -> AgentTemplate | None: ...


@dataclass(frozen=True, slots=True)
class ByRole:
    templates: Mapping[str, AgentTemplate]
    """Under the empty role: for every role that has none of its own."""

    def choose(self, point: DecisionPoint) -> AgentTemplate | None:
        return self.templates.get(point.role or "") or self.templates.get("")


@dataclass(frozen=True, slots=True)
class MutatedByChance:
    templates: Mapping[str, Sequence[AgentTemplate]]
    otherwise: ByRole
    seed: int

    def choose(self, point: DecisionPoint) -> AgentTemplate | None:
        found = self.templates.get(point.role or "") or self.templates.get("")
        if not found:
            return self.otherwise.choose(point)
        return random.Random(f"{self.seed}/{point.key}").choice(list(found))


@dataclass(frozen=True, slots=True)
class PromptedPolicy:
    """A contestant that is asked with another prompt."""

    inner: SeesMessages
    choice: TemplateChoice
    known: Sequence[AgentTemplate]
    """The prompts that the log may have been begun by, from which the game's values are read."""
    name: str
    _asked: dict[str, DecisionPoint] = field(default_factory=dict)

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        prompted = self._prompted(point)
        return await self.inner.replies(prompted, samples=samples, temperature=temperature, seed=seed)

    def messages_at(self, point: DecisionPoint) -> list[ChatMessage]:
        return self.inner.messages_at(self._prompted(point))

    def _prompted(self, point: DecisionPoint) -> DecisionPoint:
        if point.key not in self._asked:
            template = self.choice.choose(point)
            self._asked[point.key] = point if template is None else begun_by(point, template, self.known)
        return self._asked[point.key]


def begun_by(point: DecisionPoint, template: AgentTemplate, known: Sequence[AgentTemplate]) -> DecisionPoint:
    """``point`` as if its agent had been asked with ``template``. PromptRefused if the log has no value for one of its
    variables."""
    messages = point.messages
    logged = prompt_in(messages, known) if template.variables else None
    values = {} if logged is None else values_in(messages, logged) or {}
    if missing := [name for name in template.variables if name not in values]:
        raise PromptRefused(f"The log has no value for {{{missing[0]}}} of the prompt {template.prompt_id}.")
    call = msgspec.structs.replace(point.call, messages=with_prompt(messages, template, values))
    calls = [call if place == point.call_index else one for place, one in enumerate(point.step.llm_calls)]
    step = msgspec.structs.replace(point.step, llm_calls=calls)
    steps = [step if place == point.step_index else one for place, one in enumerate(point.trajectory.steps)]
    return replace(point, trajectory=msgspec.structs.replace(point.trajectory, steps=steps))


@dataclass(frozen=True, slots=True)
class PromptSide:
    """The prompts of the two releases by role, and what random mutation would make of the one that is replaced."""

    candidate: Mapping[str, AgentTemplate]
    incumbent: Mapping[str, AgentTemplate]
    random: RandomPrompts = field(default_factory=dict)
    known: Sequence[AgentTemplate] = ()
    """The prompts that the log may have been begun by: an earlier release's, or the game's own, if it was kept."""


async def prompt_side(
    database: Database, candidate: Release, incumbent: Release | None, random_prompts: RandomPrompts
) -> PromptSide:
    """What the two releases give to agents, from the ledger."""
    versions = (candidate.prompt_version, "" if incumbent is None else incumbent.prompt_version)
    ours, theirs = [await prompts_of(database.pool, version) for version in versions]
    known = await list_prompts(database.pool, limit=MOST_KNOWN) if ours or theirs else []
    return PromptSide(
        {role: one.template for role, one in ours.items()},
        {role: one.template for role, one in theirs.items()},
        random_prompts,
        [one.template for one in known],
    )


def prompted(
    policies: Mapping[Role, Contestant], side: PromptSide, names: Mapping[Role, str], seed: int
) -> dict[Role, Contestant]:
    """The contestants that have prompts of ours, instead of those in ``policies``, and the control."""
    given = [*side.known, *side.incumbent.values(), *side.candidate.values()]
    known = list({one.prompt_id: one for one in given}.values())
    found: dict[Role, Contestant] = {}
    for role, templates in ((Role.CANDIDATE, side.candidate), (Role.INCUMBENT, side.incumbent)):
        if templates:
            found[role] = PromptedPolicy(_plain(policies[role]), ByRole(templates), known, names[role])
    for role in (Role.NO_LESSONS, Role.RANDOM_LESSONS):
        if role in policies and side.candidate:
            inner = _plain(policies[role])
            found[role] = PromptedPolicy(inner, ByRole(side.candidate), known, inner.name)
    if any(side.random.values()):
        chance = MutatedByChance(side.random, ByRole(side.incumbent), seed)
        inner = _plain(policies[Role.CANDIDATE])
        found[Role.RANDOM_MUTATION] = PromptedPolicy(inner, chance, known, f"{inner.name} with a random mutation")
    return found


def _plain(policy: Contestant) -> SeesMessages:
    assert hasattr(policy, "messages_at")
    return policy  # type: ignore[return-value]
