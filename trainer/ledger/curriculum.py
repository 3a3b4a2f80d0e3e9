"""The curriculum of a model in Postgres: which arm was drawn for which window, and what each round aimed at.

A round is stored whole before anything of it is played or judged, so a run that was killed has the same draws when it
is resumed. Nothing else is kept: the next aim, how often each arm was drawn and how each did follow from the rounds,
the simulated windows and the verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from data_bridge.database import Database
from trainer.ledger.model_lock import ModelLock, check_held
from trainer.ledger.observations import observed_of
from trainer.patterns.significance import patterns_of
from trainer.statistics.curriculum import Arm, Result

Kind = Literal["market", "log"]

_SCORES = """
SELECT DISTINCT ON (v.window_id, s ->> 'trajectory_id') v.window_id, (s ->> 'score')::float8 AS score
FROM hindsight.verdicts v, jsonb_array_elements(v.scores) AS s
WHERE v.window_id = ANY($1) AND v.judge = $2 ORDER BY v.window_id, s ->> 'trajectory_id', v.created_at DESC
"""
_BASELINE = """
SELECT (p -> 'score' ->> 'mean')::float8 FROM hindsight.evaluations e, jsonb_array_elements(e.report -> 'figures') AS p
WHERE e.model = $1 AND e.report -> 'judge' ->> 'judge' = $2 AND p ->> 'role' IN ('incumbent', 'baseline')
ORDER BY e.created_at DESC, p ->> 'role' = 'incumbent' DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of draws."""

    number: int
    aim: float
    draws: Mapping[str, str]
    """The arm of each window."""
    measured: Mapping[str, Result]
    """How windows of a log had gone when they were drawn, where that was known."""


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """How often a run drew an arm, and how its windows went, as far as that is known."""

    name: str
    draws: int
    succeeded: int
    tried: int


async def draws_of(source: Any, run_id: str) -> dict[str, str]:
    """The arm of each window that the run has drawn, in the order of the draws."""
    rows = await source.fetch(
        "SELECT window_id, arm FROM hindsight.curriculum_draws WHERE run_id = $1 ORDER BY round, place", run_id
    )
    return {row["window_id"]: row["arm"] for row in rows}


async def last_round(database: Database, model: str, kind: Kind) -> Round | None:
    row = await database.pool.fetchrow(
        "SELECT round, aim FROM hindsight.curriculum_rounds WHERE model = $1 AND kind = $2 ORDER BY round DESC LIMIT 1",
        *(model, kind),
    )
    if row is None:
        return None
    drawn = await database.pool.fetch(
        "SELECT window_id, arm, succeeded, tried FROM hindsight.curriculum_draws"
        " WHERE model = $1 AND kind = $2 AND round = $3 ORDER BY place",
        *(model, kind, row["round"]),
    )
    measured = {one["window_id"]: Result(one["succeeded"], one["tried"]) for one in drawn if one["tried"] is not None}
    return Round(row["round"], row["aim"], {one["window_id"]: one["arm"] for one in drawn}, measured)


async def times_drawn(database: Database, model: str, kind: Kind, arms: Sequence[Arm]) -> Counter[str]:
    """How often each of ``arms`` was drawn since these are the arms."""
    rows = await database.pool.fetch(
        "SELECT arm, count(*) AS times FROM hindsight.curriculum_draws WHERE model = $1 AND kind = $2 AND round > ("
        "  SELECT coalesce(max(round), 0) FROM hindsight.curriculum_rounds WHERE model = $1 AND kind = $2"
        "  AND jsonb_path_query_array(arms, '$[*].name') <> $3::jsonb) GROUP BY arm",
        *(model, kind, msgspec.json.encode([arm.name for arm in arms]).decode()),
    )
    return Counter({row["arm"]: row["times"] for row in rows})


async def keep_round(
    database: Database, lock: ModelLock, run_id: str, kind: Kind, made: Round, arms: Mapping[Arm, float]
) -> None:
    """Store a round before anything of it is used: its ``arms`` with their chances, and its draws in order."""
    named = [
        {"name": arm.name, "difficulty": arm.difficulty, "weight": arm.weight, "chance": chance}
        for arm, chance in arms.items()
    ]
    rows = []
    for place, (window_id, arm) in enumerate(made.draws.items()):
        known = made.measured.get(window_id)
        result = (None, None) if known is None else (known.succeeded, known.tried)
        rows.append((run_id, window_id, lock.model, kind, made.number, place, arm, *result))
    async with database.pool.acquire() as connection, connection.transaction():
        await check_held(connection, lock)
        await connection.execute(
            "INSERT INTO hindsight.curriculum_rounds (model, kind, round, run_id, aim, arms)"
            " VALUES ($1, $2, $3, $4, $5, $6::jsonb)",
            *(lock.model, kind, made.number, run_id, made.aim, msgspec.json.encode(named).decode()),
        )
        await connection.executemany(
            "INSERT INTO hindsight.curriculum_draws"
            " (run_id, window_id, model, kind, round, place, arm, succeeded, tried)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            rows,
        )


async def played_results(source: Any, window_ids: Iterable[str]) -> dict[str, Result]:
    """How the agents did in those simulated windows that were played."""
    rows = await source.fetch(
        "SELECT window_id, succeeded, tried FROM hindsight.simulated_windows"
        " WHERE window_id = ANY($1) AND tried IS NOT NULL",
        list(window_ids),
    )
    return {row["window_id"]: Result(row["succeeded"], row["tried"]) for row in rows}


async def scores_known(source: Any, window_ids: Iterable[str], judge: str) -> dict[str, tuple[float, ...]]:
    """The scores that ``judge`` gave in those windows that it has judged."""
    found: dict[str, list[float]] = {}
    for row in await source.fetch(_SCORES, list(window_ids), judge):
        found.setdefault(row["window_id"], []).append(row["score"])
    return {window_id: tuple(scores) for window_id, scores in found.items()}


async def score_to_beat(source: Any, model: str, judge: str) -> float | None:
    """What ``judge`` gave the incumbent in its newest evaluation of ``model``, or else the script; None if neither."""
    found: float | None = await source.fetchval(_BASELINE, model, judge)
    return found


async def patterned_share(database: Database, model: str, window_ids: Iterable[str]) -> dict[str, float]:
    """By window, the share of its trajectories that show an error pattern which is more than chance."""
    rows = await observed_of(database, model, window_ids)
    marked = {name for one in patterns_of(rows) if one.significant for name in one.trajectories}
    members, shown = Counter[str](), Counter[str]()
    for one in rows:
        members[one.window_id] += 1
        shown[one.window_id] += one.trajectory_id in marked
    return {window_id: shown[window_id] / number for window_id, number in members.items()}


async def arms_of_run(source: Any, run_id: str) -> tuple[ArmFacts, ...]:
    """What a run's curriculum drew, from easy to hard; nothing without one, or in a ledger that has none yet."""
    if await source.fetchval("SELECT to_regclass('hindsight.curriculum_draws')") is None:
        return ()
    rows = await source.fetch(
        "SELECT a.name, count(d.window_id) AS draws, coalesce(sum(coalesce(s.succeeded, d.succeeded)), 0)::int"
        " AS succeeded, coalesce(sum(coalesce(s.tried, d.tried)), 0)::int AS tried"
        " FROM (SELECT DISTINCT o ->> 'name' AS name, (o ->> 'difficulty')::float8 AS difficulty"
        "   FROM hindsight.curriculum_rounds r, jsonb_array_elements(r.arms) AS o WHERE r.run_id = $1) AS a"
        " LEFT JOIN hindsight.curriculum_draws d ON d.run_id = $1 AND d.arm = a.name"
        " LEFT JOIN hindsight.simulated_windows s ON s.window_id = d.window_id"
        " GROUP BY a.name, a.difficulty ORDER BY a.difficulty, a.name",
        run_id,
    )
    return tuple(ArmFacts(**row) for row in rows)
