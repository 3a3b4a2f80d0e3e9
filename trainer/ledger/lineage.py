"""Where a checkpoint comes from, and how a window was used: from the ledger alone.

Backwards: checkpoint → batch → groups of windows → verdicts with explanations, judge and rubric → run, configuration,
code; a lineage that began with another's checkpoint goes on there. Forwards: window → the checkpoints it trained, and
which of them agents use now; or why it trained none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.quality import Reason
from data_bridge.window_ids import normalise
from trainer.ledger.batch_records import GroupRecord, decode_groups
from trainer.ledger.checkpoints import Beginning, beginning_at, find_checkpoint
from trainer.types import Checkpoint


@dataclass(frozen=True, slots=True)
class TrainedTrajectory:
    """One member of a group: its verdict, and the hash of what was judged."""

    trajectory_id: str
    agent_id: str
    score: float
    uncertainty: float
    explanation: str
    has_tokens: bool
    """False for a member that only set its group's mean."""
    content_hash: str | None
    steps: tuple[float | None, ...] = ()
    """The score of each decision, where the judge gave one."""
    luck: float | None = None
    """How much higher the judge scored it when it knew the outcome; known after two passes."""


@dataclass(frozen=True, slots=True)
class TrainedGroup:
    group_id: str
    window_id: str
    judge: str
    rubric: str
    rubric_version: str
    prompt_version: str
    prompt_hashes: tuple[str, ...]
    verdict_key: str
    trajectories: tuple[TrainedTrajectory, ...]
    use: int = 1
    """More than 1: the step trained it again."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One checkpoint on the way back, with the batch that made it."""

    checkpoint: Checkpoint
    trained_at: datetime
    run_id: str
    code_version: str | None
    settings: dict[str, Any]
    batch_id: str
    parent_step: int
    """The checkpoint that the step started from; 0 is the base model."""
    policy_step: int
    """The checkpoint that the batch was scored for: older than the parent if it was prepared ahead."""
    trainable_tokens: int
    metrics: dict[str, Any]
    groups: tuple[TrainedGroup, ...]
    begun_from: str | None = None
    """The checkpoint of another lineage that this one is (--init-from): then nothing was trained for it."""

    @property
    def window_ids(self) -> tuple[str, ...]:
        return tuple(sorted({group.window_id for group in self.groups}))


@dataclass(frozen=True, slots=True)
class Descendant:
    """A checkpoint that a window trained."""

    checkpoint: Checkpoint
    run_id: str
    batch_id: str
    trajectories: int
    mean_score: float
    later_steps: int
    """Checkpoints of the model that build on it."""
    state: str | None
    """State of the newest promotion that includes it: of this step, or of one that builds on it."""


@dataclass(frozen=True, slots=True)
class WindowStory:
    """How a window was used."""

    window_id: str
    held_out: bool
    """Whether a run kept it for an evaluation."""
    trained: tuple[Descendant, ...]
    excluded: dict[str, int]
    """Trajectories that were not trained, by reason, over all runs."""
    evaluated: tuple[str, ...]
    """Every evaluation that consulted it, in order: the checkpoint, and the ruling that came of it if there was one."""


_CHECKPOINT = """
SELECT c.*, c.created_at AS trained_at, b.settings, b.policy_step, b.trainable_tokens, b.metrics, b.groups,
       coalesce((to_jsonb(c) ->> 'parent_step')::int, (SELECT max(p.step) FROM hindsight.checkpoints p
                                WHERE p.model = c.model AND p.step < c.step), 0) AS parent_step
FROM hindsight.checkpoints c JOIN hindsight.batches b USING (batch_id)
WHERE c.model = $1 AND c.step = $2
"""
_VERDICTS = """
SELECT verdict_key, prompt_hash, scores FROM hindsight.verdicts WHERE verdict_key = ANY($1)
ORDER BY verdict_key, order_number
"""
_TRAINED = """
WITH RECURSIVE parents AS (
  SELECT model, step, coalesce((to_jsonb(c) ->> 'parent_step')::int,
                               lag(step) OVER (PARTITION BY model ORDER BY step), 0) AS parent
  FROM hindsight.checkpoints c
), own AS (
  SELECT DISTINCT c.model, c.step AS root, c.step FROM hindsight.batch_trajectories t
  JOIN hindsight.checkpoints c USING (batch_id) WHERE t.window_id = $1 AND NOT t.released
), built AS (
  SELECT * FROM own
  UNION
  SELECT p.model, b.root, p.step FROM built b JOIN parents p ON p.model = b.model AND p.parent = b.step
)
SELECT c.model, c.step, c.base_model, c.backend, c.location, c.run_id, c.batch_id,
       count(*) AS trajectories, avg(t.score) AS mean_score,
       (SELECT count(*) - 1 FROM built b WHERE b.model = c.model AND b.root = c.step) AS later_steps,
       (SELECT p.state FROM hindsight.promotions p JOIN built b ON b.model = p.model AND b.step = p.step
        WHERE b.model = c.model AND b.root = c.step
        ORDER BY p.state IN ('serving', 'canary') DESC, p.promotion_id DESC LIMIT 1) AS state
FROM hindsight.batch_trajectories t JOIN hindsight.checkpoints c USING (batch_id)
WHERE t.window_id = $1 AND NOT t.released
GROUP BY c.model, c.step ORDER BY c.model, c.step
"""
_EVALUATED = """
SELECT e.model || '@step' || e.candidate_step || coalesce(' (ruling: ' || e.ruling || ')', '') AS name
FROM hindsight.evaluations e
WHERE report -> 'windows' @> jsonb_build_array(jsonb_build_object('window_id', $1::text)) ORDER BY e.created_at, 1
"""


async def walk_back(database: Database, model: str, step: int, *, depth: int = 1) -> list[Ancestor]:
    """The checkpoint and those before it, the newest first: ``depth`` of them, 0 for all.

    A lineage that began with another's checkpoint goes on in that one, as far as this ledger has it.
    ConfigurationError if there is no such checkpoint; an empty list for the base model, which has no parent.
    """
    await find_checkpoint(database, model, step)
    found: list[Ancestor] = []
    while step > 0 and (depth == 0 or len(found) < depth):
        row = await database.pool.fetchrow(_CHECKPOINT, model, step)
        if row is not None:
            found.append(await _ancestor(database, row))
            step = found[-1].parent_step
            continue
        begun = await beginning_at(database.pool, model, step)
        if begun is None:
            break
        found.append(_taken_over(begun))
        model, step = begun.from_model, begun.from_step
    return found


def _taken_over(begun: Beginning) -> Ancestor:
    return Ancestor(
        checkpoint=begun.checkpoint,
        trained_at=begun.created_at,
        run_id="",
        code_version=None,
        settings={},
        batch_id="",
        parent_step=0,
        policy_step=0,
        trainable_tokens=0,
        metrics={},
        groups=(),
        begun_from=begun.source,
    )


async def walk_forward(database: Database, window_id: str) -> WindowStory:
    """How a window was used. NotEnoughData if no run ever read it."""
    window_id = normalise(window_id) or window_id
    pool = database.pool
    trained = await pool.fetch(_TRAINED, window_id)
    excluded = await pool.fetch(
        "SELECT reason, count(DISTINCT trajectory_id) AS number FROM hindsight.exclusions WHERE window_id = $1"
        " GROUP BY 1 ORDER BY 2 DESC, 1",
        window_id,
    )
    evaluated = await pool.fetch(_EVALUATED, window_id)
    if not (trained or excluded or evaluated):
        raise NotEnoughData(f"No run has seen window {window_id}: `check_windows.py --window {window_id}` shows it.")
    return WindowStory(
        window_id=window_id,
        held_out=any(row["reason"] == Reason.HELD_OUT for row in excluded),
        trained=tuple(msgspec.convert({**row, "checkpoint": dict(row)}, Descendant) for row in trained),
        excluded={row["reason"]: row["number"] for row in excluded},
        evaluated=tuple(row["name"] for row in evaluated),
    )


async def _ancestor(database: Database, row: Any) -> Ancestor:
    groups = decode_groups(row["groups"])
    settings = json.loads(row["settings"])
    members = await database.pool.fetch(
        "SELECT trajectory_id, has_tokens FROM hindsight.batch_trajectories WHERE batch_id = $1", row["batch_id"]
    )
    with_tokens = {member["trajectory_id"] for member in members if member["has_tokens"]}
    verdicts: dict[str, list[Any]] = {}
    for verdict in await database.pool.fetch(_VERDICTS, [group.verdict_key for group in groups]):
        verdicts.setdefault(verdict["verdict_key"], []).append(verdict)
    decoded = {
        "checkpoint": dict(row),
        "code_version": settings.pop("code_version", None),
        "settings": settings,
        "metrics": json.loads(row["metrics"]),
        "groups": [_group(group, verdicts.get(group.verdict_key, []), with_tokens) for group in groups],
    }
    return msgspec.convert({**row, **decoded}, Ancestor)


def _group(group: GroupRecord, verdicts: list[Any], with_tokens: set[str]) -> TrainedGroup:
    hashes = {one["trajectory_id"]: one["content"] for verdict in verdicts for one in json.loads(verdict["scores"])}
    members = [
        TrainedTrajectory(
            **asdict(verdict),
            agent_id=agent_id,
            has_tokens=verdict.trajectory_id in with_tokens,
            content_hash=hashes.get(verdict.trajectory_id),
        )
        for agent_id, verdict in zip(group.agent_ids, group.verdicts, strict=True)
    ]
    prompt_hashes = [verdict["prompt_hash"] for verdict in verdicts if verdict["prompt_hash"]]
    known = asdict(group) | asdict(group.identity)
    return msgspec.convert({**known, "prompt_hashes": prompt_hashes, "trajectories": members}, TrainedGroup)
