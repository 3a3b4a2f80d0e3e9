"""A batch as the ledger keeps it: enough to finish its books when the process that trained it is gone.

The trajectories themselves stay in the game's table; of the verdicts everything is kept, because the books
(the game's judge columns) are written from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from data_bridge.models import MarketOutcomes
from data_bridge.quality import Exclusion
from trainer.types import Group, JudgedGroup, JudgeIdentity, PreparedBatch, Verdict


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One judged group of a batch; ``agent_ids`` and ``verdicts`` are in the same order."""

    group_id: str
    window_id: str
    agent_ids: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    identity: JudgeIdentity
    verdict_key: str

    def as_judged(self) -> JudgedGroup:
        """The verdicts in the form that the write-back takes, without the trajectories."""
        group = Group(self.group_id, self.window_id, (), MarketOutcomes())
        return JudgedGroup(group, self.verdicts, self.identity, self.verdict_key, cached=True)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A row of ``hindsight.batches``."""

    batch_id: str
    run_id: str
    model: str
    number: int
    policy_step: int
    groups: tuple[GroupRecord, ...]
    exclusions: tuple[Exclusion, ...]
    """Members whose own tokens are not trained; they still set their group's mean."""
    trainable_tokens: int
    job_id: str | None = None
    known_metrics: Mapping[str, Any] = field(default_factory=dict)
    """What is measured of it before it is trained."""

    @property
    def window_ids(self) -> list[str]:
        return sorted({group.window_id for group in self.groups})

    def members(self) -> Iterator[tuple[GroupRecord, str, Verdict]]:
        """(group, agent, verdict) of every trajectory in the batch."""
        for group in self.groups:
            for agent_id, verdict in zip(group.agent_ids, group.verdicts, strict=True):
                yield group, agent_id, verdict


def split_trainable(prepared: PreparedBatch) -> tuple[list[JudgedGroup], list[JudgedGroup]]:
    """The groups of which something is trained, and those of which nothing is left."""
    gone = {exclusion.trajectory_id for exclusion in prepared.exclusions}
    trained: list[JudgedGroup] = []
    empty: list[JudgedGroup] = []
    for judged in prepared.batch.groups:
        survives = any(member.trajectory_id not in gone for member in judged.group.trajectories)
        (trained if survives else empty).append(judged)
    return trained, empty


def record_of(prepared: PreparedBatch, run_id: str, number: int) -> BatchRecord:
    """What is stored of ``prepared``: its trained groups with all their members."""
    batch = prepared.batch
    trained, _ = split_trainable(prepared)
    groups = tuple(
        GroupRecord(
            judged.group.group_id,
            judged.group.window_id,
            tuple(member.agent_id for member in judged.group.trajectories),
            judged.verdicts,
            judged.identity,
            judged.verdict_key,
        )
        for judged in trained
    )
    inside = {verdict.trajectory_id for group in groups for verdict in group.verdicts}
    exclusions = tuple(exclusion for exclusion in prepared.exclusions if exclusion.trajectory_id in inside)
    return BatchRecord(
        batch.batch_id,
        run_id,
        batch.model,
        number,
        batch.policy_step,
        groups,
        exclusions,
        prepared.trainable_tokens,
    )


def encode_groups(groups: Sequence[GroupRecord]) -> str:
    return msgspec.json.encode(groups).decode()


def decode_groups(text: str) -> tuple[GroupRecord, ...]:
    return msgspec.json.decode(text, type=tuple[GroupRecord, ...])


def encode_exclusions(exclusions: Sequence[Exclusion]) -> str:
    return msgspec.json.encode(exclusions).decode()


def decode_exclusions(text: str) -> tuple[Exclusion, ...]:
    return msgspec.json.decode(text, type=tuple[Exclusion, ...])
