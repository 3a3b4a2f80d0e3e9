"""What a model's plain name meant when, by the history of promotions in a real Postgres."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from data_bridge.authorship import Lineage, Served
from data_bridge.database import Database
from tests.builders import make_call, make_step, make_trajectory
from tests.builders_promotion import insert_checkpoint
from trainer.ledger.releases import served_steps
from trainer.promote.publish import publish, roll_back
from trainer.types import Checkpoint, Serving


def at(checkpoint: Checkpoint) -> Serving:
    return Serving("http://127.0.0.1:8808/v1", checkpoint.name)


async def promoted(database: Database, home: Path, checkpoint: Checkpoint) -> datetime:
    await publish(database, home, checkpoint.as_release(), at(checkpoint), reason="better")
    now: datetime = await database.pool.fetchval("SELECT now()")
    return now


def step_at(served: tuple[Served, ...], moment: datetime) -> int | None:
    trajectory = make_trajectory(
        "agent-1", steps=[make_step(calls=[make_call(model="hindsight")])], start_time=moment, end_time=moment
    )
    return Lineage("hindsight", served=served).author(trajectory.llm_calls[0], trajectory).step


async def test_a_plain_name_is_the_step_that_served_then(database: Database, tmp_path: Path) -> None:
    before = await database.pool.fetchval("SELECT now()")
    assert await served_steps(database.pool, "hindsight") == ()
    first, second = await insert_checkpoint(database, 3), await insert_checkpoint(database, 7)
    moments = [await promoted(database, tmp_path, first), await promoted(database, tmp_path, second)]
    await roll_back(database, tmp_path, "hindsight", at, step=None, reason="worse")
    after = datetime.now(UTC)
    served = await served_steps(database.pool, "hindsight")
    assert [step_at(served, moment) for moment in (before, *moments, after)] == [0, 3, 7, 3]
    assert await served_steps(database.pool, "another") == ()
