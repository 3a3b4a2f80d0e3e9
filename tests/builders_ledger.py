"""Builders for the training pipeline: groups with verdicts, and records of batches."""

from __future__ import annotations

from collections.abc import Sequence

from tests.builders import WINDOW, make_outcomes, make_trajectory
from trainer.ledger.batch_records import BatchRecord, GroupRecord
from trainer.types import Group, JudgedGroup, JudgeIdentity, Verdict

IDENTITY = JudgeIdentity("outcome", "outcome", "1", "1", is_llm=False)


def make_judged(
    scores: Sequence[float] = (0.1, 0.5, 0.9), *, group_id: str = f"{WINDOW}/1", window_id: str = WINDOW
) -> JudgedGroup:
    """A group of as many agents as there are scores."""
    members = tuple(
        make_trajectory(f"agent-{n}", window_id=window_id, trajectory_id=f"{group_id}-{n}") for n in range(len(scores))
    )
    verdicts = tuple(
        Verdict(member.trajectory_id, score, 0.05, "because") for member, score in zip(members, scores, strict=True)
    )
    return JudgedGroup(Group(group_id, window_id, members, make_outcomes()), verdicts, IDENTITY, f"key of {group_id}")


def make_record(
    trajectory_ids: Sequence[str],
    *,
    run_id: str = "run-1",
    batch_id: str = "batch-1",
    number: int = 1,
    model: str = "hindsight",
    window_id: str = WINDOW,
) -> BatchRecord:
    """A batch of one group that holds ``trajectory_ids`` with rising scores."""
    size = len(trajectory_ids)
    verdicts = tuple(Verdict(name, n / size, 0.0, "because") for n, name in enumerate(trajectory_ids))
    agents = tuple(f"agent-{n + 1}" for n in range(size))
    group = GroupRecord(f"{window_id}/1", window_id, agents, verdicts, IDENTITY, "verdict-key")
    return BatchRecord(batch_id, run_id, model, number, 0, (group,), (), 5 * size)
