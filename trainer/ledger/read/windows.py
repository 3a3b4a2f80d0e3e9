"""The windows of one run: how each was used, and what the judge said. Pure, from rows of the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from data_bridge.quality import Reason
from trainer.ledger.batch_records import decode_groups
from trainer.ledger.read.types import WindowFacts, Words


def windows_of(
    planned: Sequence[Any], members: Sequence[Any], excluded: Sequence[Any], batches: Sequence[Any]
) -> tuple[WindowFacts, ...]:
    """Every window that the run planned or left something out of, in order."""
    trained: dict[str, list[Any]] = defaultdict(list)
    for member in members:
        trained[member["window_id"]].append(member)
    left_out: dict[str, dict[str, int]] = defaultdict(dict)
    for row in excluded:
        left_out[row["window_id"]][row["reason"]] = row["number"]
    words = _words(batches)
    known = {row["window_id"]: row for row in planned}
    return tuple(
        WindowFacts(
            window_id=window_id,
            state=known[window_id]["state"] if window_id in known else _unplanned(left_out[window_id]),
            groups=known[window_id]["groups"] if window_id in known else 0,
            steps=tuple(sorted({member["step"] for member in trained[window_id]})),
            mean_score=_mean([member["score"] for member in trained[window_id]]),
            excluded=dict(sorted(left_out[window_id].items())),
            best=max(words[window_id], key=lambda one: one.score, default=None),
            worst=min(words[window_id], key=lambda one: one.score, default=None),
        )
        for window_id in sorted(known.keys() | left_out.keys())
    )


def _unplanned(reasons: Mapping[str, int]) -> str:
    return "held_out" if Reason.HELD_OUT.value in reasons else "not planned"


def _words(batches: Sequence[Any]) -> dict[str, list[Words]]:
    """What the judge said about every trained trajectory, by window."""
    found: dict[str, list[Words]] = defaultdict(list)
    for row in batches:
        if row["state"] == "trained":
            for group in decode_groups(row["groups"]):
                for agent_id, verdict in zip(group.agent_ids, group.verdicts, strict=True):
                    found[group.window_id].append(Words(agent_id, verdict.score, verdict.explanation))
    return found


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
