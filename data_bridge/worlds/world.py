"""What a world is: one object that answers whatever the trainer would otherwise have to assume.

``World`` is a world of facts: agents take actions on subjects (a quest, a ticket), and afterwards facts about these
subjects are known. Its attributes say what is called what; a world that needs more overrides methods. Every answer
comes from facts, which the game's owner writes, or from the decision itself; never from what an agent says of its own
result, unless the game writes the log (``written_by``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any, Literal

import msgspec

from data_bridge.models import Action, AgentTrajectory, Fact, Step, WindowOutcomes

FACTS_SHOWN = 60
"""Facts that a judge is shown of a window, those about what a group's members acted on first."""

MAX_TOLD = 300
"""Characters of a claimed text that a judge is shown."""

MOST = 1e15
"""A success beyond this, in either direction, is as meaningless as NaN."""


_EDITION = 2  # of what a judge is shown in worlds of facts, and of how their success is measured


class Completeness(StrEnum):
    """Whether enough is known about a window to judge it."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Known:
    """How complete a window's facts are, and in a few words what is missing."""

    completeness: Completeness
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Success:
    """What a trajectory achieved by the world's own measure: more is better."""

    value: float
    told: str
    """In words, for explanations."""


@dataclass(frozen=True, slots=True)
class WorldWords:
    """How people of this world speak: for prompts, tables and pages."""

    measure: str = "success"
    """What success is called, such as ``P&L`` or ``quests done``."""
    facts: str = "facts"
    """The heading of what is known afterwards."""
    resource: str = "resources"
    """What agents have more or less of from the start."""
    origin: str = "the game's own records"
    """Where facts come from."""


def read_number(value: object) -> float | None:
    """A finite number as written in a state; None for anything else, also for true and false."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


class World:
    """A world of facts. Frozen by convention: attributes are set once, by a class body or a file."""

    name: str = "world"
    rubric: str = "quests"
    """The rubric, unless ``--rubric`` names another."""
    words: WorldWords = WorldWords()
    state_keys: tuple[str, ...] = ()
    """Which keys of a step's state matter; the judge is shown them as claims."""
    resource_key: str | None = None
    """The key of the state that results are relative to, and by which ``matched`` grouping compares."""
    role_key: str | None = None
    """The key of the state that names a role, where the row's metadata names none."""
    roles: Literal["together", "apart"] = "together"
    """Which roles compare: all agents of the window, or only those of one role."""
    subject_keys: tuple[str, ...] = ()
    """Parameters of an action that name what it is about, the subject of facts."""
    actions: tuple[str, ...] = ()
    """The actions of this world; empty: any."""
    needs: Literal["facts", "nothing"] = "facts"
    """When a window is complete: once there is a fact, or as soon as it is over."""
    written_by: Literal["agents", "game"] = "agents"
    """Who writes the log. What the game writes of results and rewards counts; what agents write are claims."""
    weights: Mapping[str, float] = {}
    """How success is measured: the kinds of facts that count, and what one of each is worth."""
    combine: Literal["sum", "mean"] = "sum"
    """Whether an agent's subjects add up, or their mean counts."""
    right_answer: str | None = None
    """The kind of fact whose text names the action that was right for its subject: 1 for taking it, 0 for another."""
    reads_markets: bool = False
    """Whether ``market_outcomes`` is read."""
    reads_facts: bool = True
    """Whether ``hindsight.window_facts`` is read, or the view of ``--facts-view``."""
    source: str = ""
    """Digest of the file that it was loaded from."""

    # What is kept of a row

    @property
    def reads_state(self) -> bool:
        return bool(self.state_keys or self.resource_key or self.role_key)

    @property
    def version(self) -> str:
        """Part of every verdict's key: another definition of the world is another question."""
        said = {name: getattr(self, name) for name in sorted(World.__annotations__)}
        told = [said | {"words": repr(self.words)}, type(self).__qualname__, _EDITION]
        text = msgspec.json.encode(told, order="deterministic")
        return f"{self.name}-{hashlib.blake2b(text, digest_size=4).hexdigest()}"

    # When a window can be judged, and what is wrong with a row

    def known(self, facts: WindowOutcomes) -> Known:
        """Whether a closed window is complete."""
        if self.needs == "nothing" or facts.facts:
            return Known(Completeness.COMPLETE)
        doubts = facts.doubts
        if doubts.contradictory or doubts.unknown:
            why = f"{doubts.unknown} unknown, {doubts.contradictory} told differently by two sources"
            return Known(Completeness.MISSING, f"no fact that counts: {why}")
        return Known(Completeness.MISSING, "no fact about this window is known")

    def contradiction(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        """Why the row cannot be true by the facts, in one sentence; None if it can."""
        return None

    # What an action is

    def is_valid(self, action: Action) -> bool:
        """Whether the action is one of this world that was carried out."""
        if action.is_pending or action.failure is not None:
            return False
        return not self.actions or action.kind in self.actions

    def subject_of(self, action: Action) -> str | None:
        """What the action is about; None if it does not say."""
        for key in self.subject_keys:
            value = action.parameters.get(key)
            if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
                return str(value).strip()
        return None

    def choice_of(self, action: Action) -> str | None:
        """What the action chooses in one spelling: two with the same choice are right or wrong together."""
        if action.is_pending or (self.actions and action.kind not in self.actions):
            return None
        return " ".join(part for part in (action.kind, self.subject_of(action)) if part)

    def answer_of(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        """What kinds of action the agent took; None if none of them could be taken."""
        return "+".join(sorted({one.kind for one in trajectory.actions if self.is_valid(one)})) or None

    def valid_share(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> float | None:
        """The share of its decisions that led to a valid action; None if that cannot be said."""
        decided = [step for step in trajectory.steps if step.action is not None or step.llm_calls]
        return sum(self.is_valid(one) for one in trajectory.actions) / len(decided) if decided else 0.0

    # What came of it

    def trusts_log_of(self, trajectory: AgentTrajectory) -> bool:
        """Whether results and rewards in this row count: the game writes the log, and the agent sent no such row."""
        return self.written_by == "game" and not trajectory.is_sent

    def facts_about(self, action: Action, agent_id: str, facts: WindowOutcomes) -> list[Fact]:
        """The facts about the action's subject: those of this agent's part in it, where there are such.

        Never those about an agent, whatever the row calls the subject of its action.
        """
        subject = self.subject_of(action)
        if subject is None:
            return []
        own = [fact for fact in facts.about(f"{agent_id}/{subject}") if fact.agent in (None, agent_id)]
        return own or [fact for fact in facts.about(subject) if fact.agent is None and not fact.is_of(agent_id)]

    def result_of(self, action: Action, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        """What came of one action by the facts, in words; None if nothing is known.

        Nothing is known of a reply that was never carried out, but whether it was the right one.
        """
        if trajectory.is_evaluation:
            worth = self.worth(action, facts)
            return None if worth is None else "the right action" if worth > 0 else "not the right action"
        about = [fact for fact in self.facts_about(action, trajectory.agent_id, facts) if not fact.visible]
        return "; ".join(told_fact(fact) for fact in about) or None

    def worth(self, action: Action, facts: WindowOutcomes) -> float | None:
        """What the action is worth by the facts alone, also where it was never carried out; None if they do not say."""
        subject = self.subject_of(action)
        if self.right_answer is None or subject is None:
            return None
        told = [fact.text for fact in facts.about(subject) if fact.kind == self.right_answer and fact.agent is None]
        right = next(iter(told), None)
        return None if right is None else float(action.kind == right.strip().upper())

    def success(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> Success | None:
        """What the trajectory achieved: by facts, else by the rewards that the game logged; None if unknown."""
        if trajectory.replayed_pnl is not None:
            return Success(trajectory.replayed_pnl, f"{self.words.measure} {trajectory.replayed_pnl:+g} when replayed")
        measured = None if trajectory.is_evaluation else self._by_facts(trajectory, facts)
        if measured is None and self.trusts_log_of(trajectory):
            rewards = [step.reward for step in trajectory.steps if step.reward is not None]
            measured = math.fsum(rewards) if rewards and all(map(math.isfinite, rewards)) else None
        if measured is None or not abs(measured) <= MOST:
            return None
        return Success(measured, f"{self.words.measure} {measured:+g}")

    def _by_facts(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> float | None:
        agent_id = trajectory.agent_id
        values = [self._value(facts.about(agent_id))]
        by_validity = sorted(trajectory.actions, key=self.is_valid)  # of one subject the last that was carried out
        for action in last_on_each(by_validity, self.subject_of):
            about = self.facts_about(action, agent_id, facts)
            value = self._value(about)
            value = self.worth(action, facts) if value is None else value
            had_no_part = not self.is_valid(action) and not any(fact.is_of(agent_id) for fact in about)
            values.append(0.0 if value is not None and had_no_part else value)
        found = [value for value in values if value is not None]
        if not found:
            return None
        return fmean(found) if self.combine == "mean" else math.fsum(found)

    def _value(self, facts: Iterable[Fact]) -> float | None:
        counted = [self.weights[f.kind] * f.change for f in facts if f.kind in self.weights and f.change is not None]
        return math.fsum(counted) if counted else None

    def side_of(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> int | None:
        """1 if it succeeded, -1 if it did harm, 0 if neither; None if unknown."""
        success = self.success(trajectory, facts)
        return None if success is None else (success.value > 0) - (success.value < 0)

    # What a judge is shown

    def shown_facts(self, window_id: str, members: Sequence[AgentTrajectory], facts: WindowOutcomes) -> dict[str, Any]:
        """What became known afterwards, for a judge: about what ``members`` acted on first, never about who they are.

        What is known of one member alone stands among its own results.
        """
        names = {name for one in members for name in (one.agent_id, one.trajectory_id)}

        def is_of_one(fact: Fact) -> bool:
            return fact.agent is not None or any(map(fact.is_of, names))

        acted_on = {self.subject_of(action) for one in members for action in one.actions}
        common = [fact for fact in facts.facts if not is_of_one(fact)]
        common.sort(key=lambda fact: fact.subject not in acted_on)
        shown, more = common[:FACTS_SHOWN], len(common) - FACTS_SHOWN
        parts = (("facts", False), ("known_to_agents_when_they_decided", True))
        told = {name: [shown_fact(fact) for fact in shown if fact.visible is visible] for name, visible in parts}
        return (
            {"window": window_id}
            | {name: part for name, part in told.items() if part}
            | ({"facts_left_out": more} if more > 0 else {})
        )

    def result(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> dict[str, Any]:
        """The trajectory's result by the facts, for a judge; empty if it does not follow from them."""
        success, resource = self.success(trajectory, facts), trajectory.starting_balance
        told: dict[str, Any] = {}
        if success is not None:
            told[self.words.measure.replace(" ", "_")] = success.value
            if resource is not None and resource > 0:
                told[f"percent_of_{self.words.resource.replace(' ', '_')}"] = 100 * success.value / resource
        own = facts.about(trajectory.agent_id)
        return told | ({"facts": [told_fact(fact) for fact in own]} if own else {})

    def claims(self, trajectory: AgentTrajectory, *, is_blind: bool) -> dict[str, Any]:
        """What the row says of the whole, for a judge; nothing of it is a fact."""
        return {"starting_resources": trajectory.starting_balance} if trajectory.starting_balance is not None else {}

    def step_claims(self, step: Step, trajectory: AgentTrajectory, *, is_blind: bool) -> dict[str, Any]:
        """What the row says of one step, for a judge: the state before it; with hindsight, what came of it."""
        told: dict[str, Any] = {key: step.state.everything.get(key) for key in self.state_keys}
        if not is_blind and not self.trusts_log_of(trajectory):
            told |= self._logged(step)
        return {key: value for key, value in told.items() if value is not None}

    def step_result(self, step: Step, trajectory: AgentTrajectory, facts: WindowOutcomes) -> str | None:
        """What came of a step, for a judge: by facts, and by the log where the game writes it."""
        told = None if step.action is None else self.result_of(step.action, trajectory, facts)
        logged = self._logged(step) if self.trusts_log_of(trajectory) else {}
        parts = [told, *(f"{name} {brief(value)}" for name, value in logged.items() if value is not None)]
        return "; ".join(part for part in parts if part) or None

    def _logged(self, step: Step) -> dict[str, Any]:
        return {"result": None if step.action is None else step.action.result, "reward": step.reward}

    def rests_on_claims(self, trajectory: AgentTrajectory, facts: WindowOutcomes) -> bool:
        """Whether two trajectories with the same replies may still be different decisions, by what they claim."""
        return False

    # Whether a reply is a valid action, for worlds that cannot be played again

    @property
    def can_parse(self) -> bool:
        """Whether ``parse`` can tell a valid reply from an invalid one."""
        return False

    def parse(self, reply: str, logged: Action | None = None) -> Action | None:
        """The action that ``reply`` asks for, None if it is none; ``logged`` is what was done with the logged reply."""
        return None

    @property
    def can_value_replies(self) -> bool:
        """Whether facts say what a reply that was never carried out would have been worth."""
        return self.can_parse and self.right_answer is not None

    # What a proposal for an agent is: advice

    @property
    def can_advise(self) -> bool:
        """Whether it can be told afterwards if a proposal was right."""
        return self.can_value_replies

    def is_right(self, action: Action, facts: WindowOutcomes) -> bool | None:
        """Whether ``action`` was right by the facts; None if they do not say."""
        worth = self.worth(action, facts)
        return None if worth is None else worth > 0


def last_on_each(actions: Sequence[Action], subject_of: Callable[[Action], str | None]) -> list[Action]:
    """The last action on each subject: many actions on one ticket are one piece of work."""
    last: dict[str, Action] = {}
    for action in actions:
        subject = subject_of(action)
        if subject is not None:
            last[subject] = action
    return list(last.values())


def told_fact(fact: Fact) -> str:
    """A fact in a few words: ``resolved 0 → 1``, ``customer_said thanks``."""
    parts = [fact.kind]
    if fact.after is not None:
        parts.append(f"{fact.after:g}" if fact.before is None else f"{fact.before:g} → {fact.after:g}")
    if fact.text is not None:
        parts.append(brief(fact.text))
    return " ".join(parts)


def shown_fact(fact: Fact) -> dict[str, Any]:
    """A fact as JSON for a judge, without what is not known."""
    shown = {"about": fact.subject, "what": fact.kind, "before": fact.before, "after": fact.after, "said": fact.text}
    shown["at"] = fact.at.strftime("%Y-%m-%d %H:%M") if fact.at else None
    return {name: value for name, value in shown.items() if value is not None}


def brief(value: object) -> str:
    """A logged value as short text."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode(errors="replace")
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}..."
