"""What the ledger stores of a batch: its groups with their verdicts, and who of them only counts for the mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from data_bridge.quality import Exclusion
from trainer.rewards import RewardHistory
from trainer.types import JudgeIdentity, Verdict


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One judged group of a batch; ``agent_ids`` and ``verdicts`` are in the same order."""

    group_id: str
    window_id: str
    agent_ids: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    identity: JudgeIdentity
    verdict_key: str
    use: int = 1
    """1 for a fresh group; 2 and 3 when it is replayed."""
    content: tuple[str, ...] = ()
    """Hash of each member's row as it was judged; empty before there was replay."""
    roles: tuple[str | None, ...] = ()
    """Role of each member, as its row says; empty before it was kept."""

    @property
    def spread(self) -> float:
        """The best score minus the worst."""
        scores = [verdict.score for verdict in self.verdicts]
        return max(scores) - min(scores)


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
    """Metrics of the batch before it is trained."""
    history: RewardHistory | None = None
    """Stored once, with the batch; not read back with it."""

    @property
    def window_ids(self) -> list[str]:
        return sorted({group.window_id for group in self.fresh})

    @property
    def fresh(self) -> tuple[GroupRecord, ...]:
        """The groups that this batch trains for the first time: only their windows and rows change their state."""
        return tuple(group for group in self.groups if group.use == 1)

    def members(self) -> Iterator[tuple[GroupRecord, str, str | None, Verdict]]:
        """(group, agent, role, verdict) of every trajectory in the batch."""
        for group in self.groups:
            roles = group.roles or (None,) * len(group.agent_ids)
            for agent_id, role, verdict in zip(group.agent_ids, roles, group.verdicts, strict=True):
                yield group, agent_id, role, verdict


def decode_groups(text: str) -> tuple[GroupRecord, ...]:
    return msgspec.json.decode(text, type=tuple[GroupRecord, ...])
