"""What judges said of logged trajectories, from our own verdicts: the game's columns are the writers' too."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from data_bridge.database import Database

# Only what a training run or judge_windows.py asked: an examination of the judge shows it altered outcomes, an
# evaluation shows it replies that nobody gave. Of several verdicts the first counts: nothing that is written later
# changes it.
_SCORES = """
SELECT DISTINCT ON (judge, trajectory_id) judge, window_id, trajectory_id, score, judged_at
  FROM (SELECT concat_ws(' ', v.judge, v.rubric, v.rubric_version, v.prompt_version) AS judge, v.window_id,
               one.trajectory_id, avg(one.score) AS score, max(v.created_at) AS judged_at
          FROM hindsight.verdicts AS v, jsonb_to_recordset(v.scores) AS one (trajectory_id text, score float8)
         WHERE v.window_id BETWEEN $1 AND $2 AND v.pass = 'hindsight' AND NOT starts_with(v.group_id, 'evaluation/')
           AND (starts_with(v.run_id, 'judge-') OR v.run_id IN (SELECT run_id FROM hindsight.runs))
         GROUP BY v.verdict_key, 1, v.window_id, one.trajectory_id) AS averaged
 ORDER BY judge, trajectory_id, judged_at, score
"""


@dataclass(frozen=True, slots=True)
class JudgedScore:
    """The score of one trajectory, averaged over the orders it was judged in."""

    judge: str
    """The judge with its rubric and their versions: scores of one are comparable with each other only."""
    window_id: str
    trajectory_id: str
    score: float
    judged_at: datetime


async def judged_scores(database: Database, first: str, last: str) -> list[JudgedScore]:
    """The scores in the windows from ``first`` to ``last``."""
    return [JudgedScore(**row) for row in await database.pool.fetch(_SCORES, first, last)]
