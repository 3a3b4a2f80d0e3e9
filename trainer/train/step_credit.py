"""Credits decisions instead of whole trajectories, where the judge gives each decision a score.

A trajectory with several decisions under one score teaches all of them alike, the bad one too. With ``--step-credit``
each decision becomes a trajectory of its own for the backend, and is compared with the decisions that others took at
the same point: after the same prompt where at least two had it, else at the same place in the hour. Its score is the
discounted return: its own score and, by ``--step-discount``, those of the decisions after it, shaped by
``--potential``. A decision that the judge gave no usable score is not trained; a group in which it gave none to any
decision of a member is credited as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from data_bridge.models import AgentTrajectory, Step
from data_bridge.quality import Exclusion
from trainer.rewards import Potential, RewardHistory
from trainer.train.potential import PotentialName, equity
from trainer.types import MIN_GROUP, Batch, Group, JudgedGroup, PreparedBatch, Verdict


@dataclass(frozen=True, slots=True)
class CreditedDecision:
    """One decision of a trajectory: its place among them, and the trajectory."""

    trajectory_id: str
    number: int


@dataclass(frozen=True, slots=True)
class ByDecision:
    """A batch of single decisions, and whose each of them is."""

    batch: Batch
    decisions: Mapping[str, CreditedDecision]
    """By the id that the decision has in the batch."""


def decided(trajectory: AgentTrajectory) -> list[Step]:
    """The steps in which something was decided."""
    return [step for step in trajectory.steps if step.action is not None or step.llm_calls]


def returns(scores: Sequence[float | None], discount: float) -> list[float | None]:
    """For each decision its own score and those that follow, discounted; from 0 to 1 as the scores are.

    A decision without a score has no return, and adds nothing to those before it.
    """
    found: list[float | None] = []
    total = weight = 0.0
    for score in reversed(scores):
        total, weight = discount * total, discount * weight
        if score is not None:
            total, weight = score + total, 1 + weight
        found.append(None if score is None else total / weight)
    return found[::-1]


def decision_name(trajectory_id: str, number: int) -> str:
    """The id that a decision has in a batch."""
    return f"{trajectory_id}#{number}"


def by_decision(batch: Batch, discount: float, potential: PotentialName = "off") -> ByDecision:
    """``batch`` with every group that can be split by decision point."""
    decisions: dict[str, CreditedDecision] = {}
    groups: list[JudgedGroup] = []
    for judged in batch.groups:
        parts = _split(judged, discount, decisions) if _can_be_split(judged) else []
        groups += parts or [judged]
    names = defaultdict(list)
    for name, decision in decisions.items():
        names[decision.trajectory_id].append(name)

    def each(trajectory_id: str) -> list[str]:
        return names.get(trajectory_id, [trajectory_id])

    untrained = tuple(replace(one, trajectory_id=name) for one in batch.untrained for name in each(one.trajectory_id))
    baselines = {name: one for whose, one in batch.baselines.items() for name in each(whose)}
    baselines |= {name: one for name, one in batch.baselines.items() if name in decisions}
    emphasis = {name: one for whose, one in batch.emphasis.items() for name in each(whose)}
    states = {} if potential == "off" else _potentials(batch, decisions)
    parted = replace(
        batch, groups=tuple(groups), untrained=untrained, baselines=baselines, potentials=states, emphasis=emphasis
    )
    return ByDecision(parted, decisions)


def _potentials(batch: Batch, decisions: Mapping[str, CreditedDecision]) -> dict[str, Potential]:
    """Of the state in which each credited decision was taken."""
    found: dict[str, Potential] = {}
    for judged in batch.groups:
        for one in judged.group.trajectories:
            own = decided(one)
            for number, value in enumerate(equity(one, own)):
                if (name := decision_name(one.trajectory_id, number)) in decisions:
                    found[name] = Potential(value, len(own) - number)
    return found


def as_whole(prepared: PreparedBatch, whole: Batch, decisions: Mapping[str, CreditedDecision]) -> PreparedBatch:
    """``prepared`` as the ledger knows it: a trajectory is left out if none of its decisions is trained."""
    for group in prepared.groups:
        for one in group.trajectories:
            _name(one.metadata, decisions)
    gone: dict[str, list[Exclusion]] = defaultdict(list)
    for exclusion in prepared.exclusions:
        decision = decisions.get(exclusion.trajectory_id)
        gone[exclusion.trajectory_id if decision is None else decision.trajectory_id].append(exclusion)
    number: dict[str, int] = defaultdict(int)
    for decision in decisions.values():
        number[decision.trajectory_id] += 1
    exclusions = tuple(
        replace(own[0], trajectory_id=name) for name, own in gone.items() if len(own) >= number.get(name, 1)
    )
    history = prepared.history
    if history is not None:
        members = tuple(
            one
            if (decision := decisions.get(one.graded.trajectory_id)) is None
            else replace(one, graded=replace(one.graded, trajectory_id=decision.trajectory_id, step=decision.number))
            for one in history.members
        )
        history = RewardHistory(history.rule, members)
    return replace(prepared, batch=whole, exclusions=exclusions, history=history)


def _can_be_split(judged: JudgedGroup) -> bool:
    """Whether every member has as many scores as decisions, and at least one of them is usable."""
    numbers = [len(decided(one)) for one in judged.group.trajectories]
    told = [len(verdict.steps) for verdict in judged.verdicts]
    is_scored = [any(score is not None for score in verdict.steps) for verdict in judged.verdicts]
    return numbers == told and all(is_scored) and max(numbers) > 1


def _split(judged: JudgedGroup, discount: float, decisions: dict[str, CreditedDecision]) -> list[JudgedGroup]:
    points: dict[tuple[int, str], list[tuple[AgentTrajectory, Verdict]]] = defaultdict(list)
    for one, verdict in zip(judged.group.trajectories, judged.verdicts, strict=True):
        for number, (step, score) in enumerate(zip(decided(one), returns(verdict.steps, discount), strict=True)):
            if score is None:
                continue
            name = decision_name(one.trajectory_id, number)
            decisions[name] = CreditedDecision(one.trajectory_id, number)
            part = msgspec.structs.replace(one, trajectory_id=name, steps=[step])
            points[number, _prompt(step)].append((part, replace(verdict, trajectory_id=name, score=score, steps=())))
    pooled: dict[tuple[int, str], list[tuple[AgentTrajectory, Verdict]]] = defaultdict(list)
    for (number, prompt), members in points.items():
        pooled[number, prompt if len(members) >= MIN_GROUP else ""] += members
    return [
        replace(
            judged,
            group=Group(
                f"{judged.group.group_id}:{place}",
                judged.group.window_id,
                tuple(part for part, _ in members),
                judged.group.outcomes,
                judged.group.world,
                judged.group.hours,
            ),
            verdicts=tuple(verdict for _, verdict in members),
        )
        for place, (_, members) in enumerate(sorted(pooled.items(), key=lambda item: item[0]))
    ]


def _prompt(step: Step) -> str:
    """What the agent was asked; empty if no model was."""
    return step.llm_calls[0].user_prompt if step.llm_calls else ""


def _name(metadata: dict[str, Any], decisions: Mapping[str, CreditedDecision]) -> None:
    """Name the trajectory that a decision is of, so that a fault of it is found to be that row's."""
    decision = decisions.get(str(metadata.get("trajectory_id")))
    if decision is not None:
        metadata |= {"trajectory_id": decision.trajectory_id, "decision": decision.number}
