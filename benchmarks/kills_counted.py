"""What a campaign of kills has cost, by the endpoint, the ledger and the checkpoints on disk. For ``kills.py``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from data_bridge.database import Database
from tests.fakes.kills import CountingJudge
from trainer.inference.checkpoints import CheckpointStore

_TRAINED = "hindsight.batch_trajectories JOIN hindsight.batches AS b USING (batch_id, model) WHERE b.state = 'trained'"
_TWICE = f"""
SELECT count(*) FROM (SELECT 1 FROM {_TRAINED}
 GROUP BY model, group_id, use HAVING count(DISTINCT batch_id) > 1) AS twice
"""
# A group is lost if it was planned, no batch has trained it, and a member of it is left out for no reason.
_PLANNED = """
SELECT r.model, g.value->>'group_id' AS group_id, member.trajectory_id,
       EXISTS (SELECT FROM hindsight.exclusions AS e
                WHERE e.run_id = w.run_id AND e.trajectory_id = member.trajectory_id) AS left_out
  FROM hindsight.windows AS w JOIN hindsight.runs AS r USING (run_id), jsonb_array_elements(w.groups) AS g,
       jsonb_array_elements_text(g.value->'trajectory_ids') AS member(trajectory_id)
"""
_GROUPS = f"""
WITH planned AS ({_PLANNED}), trained AS (SELECT DISTINCT model, group_id FROM {_TRAINED})
SELECT count(*) AS planned, count(*) FILTER (WHERE is_trained) AS trained,
       count(*) FILTER (WHERE NOT is_trained AND explained) AS left_out
  FROM (SELECT p.model, p.group_id, bool_and(p.left_out) AS explained, bool_or(t.group_id IS NOT NULL) AS is_trained
          FROM planned AS p LEFT JOIN trained AS t USING (model, group_id) GROUP BY 1, 2) AS groups
"""


async def _stored_twice(database: Database) -> int:
    """Calls that the ledger has as paid for, of a question that it has paid for before."""
    query = (
        "SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM hindsight.judge_calls WHERE result = 'ok'"
        " GROUP BY verdict_key, order_number) AS paid"
    )
    return int(await database.pool.fetchval(query))


async def count_judging(database: Database, name: str, expected: int) -> bool:
    stored = await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts")
    twice = await _stored_twice(database)
    print(f"{name}: {stored} of {expected} verdicts stored, {twice} stored twice", flush=True)
    return stored == expected and not twice


async def count_training(database: Database, home: Path) -> bool:
    groups = await database.pool.fetchrow(_GROUPS)
    assert groups is not None
    lost = groups["planned"] - groups["trained"] - groups["left_out"]
    twice, paid_twice = await database.pool.fetchval(_TWICE), await _stored_twice(database)
    print(f"training: {groups['planned']} groups planned, {groups['trained']} trained, {groups['left_out']}", end=" ")
    print(f"left out for a reason, {lost} lost; {twice} trained twice per use; {paid_twice} verdicts stored twice")
    rows = await database.pool.fetch(
        "SELECT batch_id, coalesce((metrics->>'ranks')::float8::int, 1) AS ranks FROM hindsight.batches"
        " WHERE state = 'trained'"
    )
    in_ledger, made = {row["batch_id"] for row in rows}, _on_disk(home)
    by_ranks = ", ".join(f"{n} by {ranks}" for ranks, n in sorted(Counter(row["ranks"] for row in rows).items()))
    print(f"training: {len(in_ledger)} steps in the ledger ({by_ranks} ranks), {len(made)} checkpoints", end=" ")
    print(f"of {len(set(made))} batches", flush=True)
    return not (lost or twice or paid_twice) and len(made) == len(set(made)) and set(made) == in_ledger


def _on_disk(home: Path) -> list[str]:
    """The batch that each checkpoint was made of: a batch trained twice would have two."""
    store = CheckpointStore(home / "checkpoints" / "hindsight")
    return [store.read(step).batch_id for step in store.steps()]


def count_whole(judge: CountingJudge, home: Path, seconds: float, *, at_once: int) -> bool:
    """What the endpoint saw, over all runs. A kill may cost ``at_once`` calls, whatever was in flight at its moment:
    those whom it kills indirectly die a little later. The death of a rank costs none."""
    killed = Counter(kill.part for kill in judge.kills)
    repeated, unexplained = judge.repeated, judge.unexplained()
    late = sum(log.read_text(errors="replace").count("the commit is refused") for log in home.glob("ray/**/*.err"))
    parts = ", ".join(f"{n} {part}" for part, n in killed.most_common())
    print(f"{len(judge.kills)} kills in {seconds:.0f} s ({parts})")
    print(
        f"{len(judge.calls)} calls answered for {len(judge.questions)} questions, {len(repeated)} paid twice:", end=" "
    )
    print(f"{len(unexplained)} that were not in flight when their caller died.", end=" ")
    print(f"{judge.in_flight_at_kills} were in flight at the moments of the kills")
    print(f"{late} late commits refused", flush=True)
    return not unexplained and len(repeated) <= at_once * (len(judge.kills) - killed["rank"])
