"""Groups that were judged, from our own verdicts: what a judge was asked in training or by ``judge_windows.py``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import msgspec

from data_bridge.database import Database
from trainer.ledger.verdicts import JudgedTrajectory
from trainer.types import JudgeIdentity

# As in ``scores``: no examination of the judge, no evaluation. The newest verdict on a group counts.
_GROUPS = """
SELECT DISTINCT ON (window_id, group_id) window_id, group_id, verdict_key, judge, is_llm, rubric, rubric_version,
       prompt_version, orders
  FROM (SELECT v.window_id, v.group_id, v.verdict_key, v.judge, v.is_llm, v.rubric, v.rubric_version, v.prompt_version,
               jsonb_agg(v.scores ORDER BY v.order_number)::text AS orders, max(v.created_at) AS judged_at
          FROM hindsight.verdicts AS v
         WHERE v.window_id >= $1 AND v.window_id < $2 AND v.pass = 'hindsight' AND v.rubric <> ALL($3)
           AND NOT starts_with(v.group_id, 'evaluation/')
           AND (starts_with(v.run_id, 'judge-') OR v.run_id IN (SELECT run_id FROM hindsight.runs))
         GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) AS judged
 ORDER BY window_id, group_id, judged_at DESC, verdict_key
"""


@dataclass(frozen=True, slots=True)
class StoredScore:
    """The score of one trajectory over the orders that it was judged in."""

    score: float
    uncertainty: float | None
    """The standard error of the score; None after one order, which says nothing about it."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group by reference, and what the judge said of its members."""

    window_id: str
    group_id: str
    verdict_key: str
    identity: JudgeIdentity
    scores: dict[str, StoredScore]
    """By trajectory."""
    orders: int


async def stored_groups(database: Database, first: str, end: str, *, without: Sequence[str] = ()) -> list[StoredGroup]:
    """The groups of windows from ``first`` to before ``end`` that have a verdict, but for some rubrics."""
    rows = await database.pool.fetch(_GROUPS, first, end, list(without))
    return [
        StoredGroup(
            row["window_id"],
            row["group_id"],
            row["verdict_key"],
            JudgeIdentity(
                row["judge"], row["rubric"], row["rubric_version"], row["prompt_version"], is_llm=row["is_llm"]
            ),
            *_scores(msgspec.json.decode(row["orders"], type=list[list[JudgedTrajectory]])),
        )
        for row in rows
    ]


def _scores(orders: Sequence[Sequence[JudgedTrajectory]]) -> tuple[dict[str, StoredScore], int]:
    heard: defaultdict[str, list[float]] = defaultdict(list)
    for order in orders:
        for one in order:
            heard[one.trajectory_id].append(one.score)
    found = {
        name: StoredScore(fmean(scores), stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None)
        for name, scores in heard.items()
    }
    return found, len(orders)
