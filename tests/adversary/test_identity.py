"""Whose row counts: nobody gains by writing more rows, longer ones, later ones, or under another's name."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge.database import Database
from data_bridge.models import AgentTrajectory
from data_bridge.quality import Reason, Rules, check
from data_bridge.reader import WindowReader
from data_bridge.survey import survey
from data_bridge.window_ids import end_of, start_of
from tests.adversary.test_row_level_security import agent, server, write  # noqa: F401  # server is a fixture
from tests.builders import (
    NOW,
    WINDOW,
    insert_trajectory,
    insert_window,
    make_step,
    make_trajectory,
    make_window,
    naive,
    recorder_steps,
)
from tests.builders_roles import RolesServer
from trainer.config.sections import PlanSettings
from trainer.ledger.runs import Ledger
from trainer.plan.plan import look_ahead

RULES = Rules(now=NOW)
OUTCOME = end_of(WINDOW, 1)
"""When everybody knows how the hour went."""


def at(minute: float) -> datetime:
    return start_of(WINDOW) + timedelta(minutes=minute)


def counted(rows: list[AgentTrajectory], agent_id: str) -> str:
    """The row that stands for the agent, beside honest others."""
    others = make_window(agents=3).trajectories
    [own] = [one for one in check(make_window(trajectories=[*rows, *others]), RULES).usable if one.agent_id == agent_id]
    return own.trajectory_id


FORGED: dict[str, dict[str, Any]] = {
    "with more actions": {"steps": [make_step(n) for n in range(9)]},
    "that ends later": {"end_time": OUTCOME},
    "with an id that sorts last": {"trajectory_id": "~"},
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_row_under_anothers_id_does_not_displace_the_one_that_was_written_first(forged: str) -> None:
    real = make_trajectory("victim", trajectory_id="real", created_at=at(50))
    later = make_trajectory("victim", **{"trajectory_id": "forged", **FORGED[forged]}, created_at=at(51))
    assert counted([later, real], "victim") == counted([real, later], "victim") == "real"


@pytest.mark.parametrize("rows", [1, 2, 5, 25])
def test_an_agent_with_n_rows_expects_what_it_expects_with_one(rows: int) -> None:
    """Rows of random worth, longer where they are better, the best one written again when the outcome is known."""
    chance, scores = random.Random(rows), []
    for _ in range(400):
        worth = {f"row-{number}": chance.random() for number in range(rows)}
        written = [
            make_trajectory("mallory", trajectory_id=name, created_at=at(number), steps=_as_long_as(value))
            for number, (name, value) in enumerate(worth.items())
        ]
        best = max(worth, key=lambda name: worth[name])
        copy = make_trajectory("mallory", trajectory_id="copy", created_at=OUTCOME, steps=_as_long_as(1.0))
        scores.append((worth | {"copy": worth[best]})[counted([copy, *written], "mallory")])
    assert abs(fmean(scores) - 0.5) < 3 * (1 / 12) ** 0.5 / len(scores) ** 0.5


def _as_long_as(worth: float) -> list[Any]:
    return [make_step(number) for number in range(1 + int(8 * worth))]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "trajectory_id": st.text(min_size=1, max_size=4),
                "created_at": st.integers(51, 600).map(at),
                "end_time": st.integers(0, 600).map(at),
                "used_in_training": st.booleans(),
                "is_evaluation": st.booleans(),
                "steps": st.integers(0, 6).map(lambda steps: [make_step(n) for n in range(steps)]),
            }
        ),
        max_size=6,
        unique_by=lambda row: row["trajectory_id"],
    )
)
def test_nothing_written_afterwards_changes_who_is_in_the_window(later: list[dict[str, Any]]) -> None:
    honest = [make_trajectory(f"agent-{n}", trajectory_id=f"honest-{n}", created_at=at(50)) for n in range(4)]
    forged = [make_trajectory(f"agent-{n % 4}", **row) for n, row in enumerate(later)]
    checked = check(make_window(trajectories=[*forged, *honest]), RULES)
    assert {one.trajectory_id for one in checked.usable} == {one.trajectory_id for one in honest}
    assert len(checked.excluded) == len(forged)


# In a database


async def test_a_forged_row_in_the_table_costs_only_itself(database: Database) -> None:
    ids = await insert_window(database.pool, agents=3)
    written = naive(OUTCOME + timedelta(minutes=5))
    forged = json.dumps(recorder_steps(9, pnl=1e6))
    for number in range(3):
        await insert_trajectory(
            database.pool, "agent-1", steps_json=forged, createdAt=written, trajectoryId=f"forged-{number}"
        )
    [window] = (await survey(WindowReader(database, RULES), RULES)).windows
    assert {one.trajectory_id for one in window.usable} == set(ids)
    assert {one.reason for one in window.excluded} == {Reason.DUPLICATE_AGENT}


async def plan_of(database: Database) -> tuple[set[str], dict[str, str]]:
    """What the next run would train, and what it would leave out."""
    reader = WindowReader(database, RULES)
    outlook = await look_ahead(
        await survey(reader, RULES), reader, Ledger(database), PlanSettings(), model="hindsight", seed=1
    )
    planned = {name for window in outlook.windows for group in window.groups for name in group.trajectory_ids}
    return planned, {one.trajectory_id: one.reason.value for one in outlook.plan.excluded}


async def trained(database: Database, ids: list[str]) -> None:
    """The ledger and the game's columns as a batch with these rows leaves them."""
    await database.pool.execute(
        "INSERT INTO hindsight.runs (run_id, model, base_model, backend, state, fingerprint, settings, host, pid)"
        " VALUES ('r', 'hindsight', 'base', 'cpu', 'done', 'f', '{}', 'host', 1)"
    )
    await database.pool.execute(
        "INSERT INTO hindsight.batches (batch_id, run_id, model, number, policy_step, state, groups, trainable_tokens)"
        " VALUES ('b', 'r', 'hindsight', 1, 0, 'trained', '[]', 9)"
    )
    await database.pool.execute(
        "INSERT INTO hindsight.batch_trajectories (batch_id, trajectory_id, model, agent_id, window_id, group_id,"
        " verdict_key, score) SELECT 'b', \"trajectoryId\", 'hindsight', \"agentId\", $2, $2, 'k', 0.5"
        ' FROM trajectories WHERE "trajectoryId" = ANY($1)',
        *(ids, WINDOW),
    )
    await database.pool.execute(
        'UPDATE trajectories SET "usedInTraining" = true, "trainedInBatch" = \'b\' WHERE "trajectoryId" = ANY($1)', ids
    )


async def test_three_agents_with_more_rows_are_not_trained_again_by_the_next_run(database: Database) -> None:
    """Before, each run took the next best row of everybody: five rows were trained five times."""
    ids = await insert_window(database.pool, agents=3)
    late = naive(OUTCOME)
    more = [
        await insert_trajectory(database.pool, f"agent-{number}", steps=recorder_steps(7), createdAt=late)
        for number in (1, 2, 3)
    ]
    assert (await plan_of(database))[0] == set(ids)
    await trained(database, ids)
    assert await plan_of(database) == (set(), dict.fromkeys(more, "duplicate_agent"))


async def test_rows_that_are_written_before_the_trained_ones_are_not_trained_either(database: Database) -> None:
    """A writer that may choose ``createdAt`` puts new rows in front of those that were trained."""
    ids = await insert_window(database.pool, agents=3)
    await trained(database, ids)
    early = naive(at(1))
    more = [await insert_trajectory(database.pool, f"agent-{n}", createdAt=early) for n in (1, 2, 3)]
    planned, left_out = await plan_of(database)
    assert not planned
    assert {left_out[one] for one in more} == {"duplicate_agent"}


async def test_a_mark_of_use_that_was_taken_back_trains_nothing_twice(database: Database) -> None:
    ids = await insert_window(database.pool, agents=3)
    await trained(database, ids)
    await database.pool.execute('UPDATE trajectories SET "usedInTraining" = false, "trainedInBatch" = NULL')
    assert (await plan_of(database))[0] == set()


# With roles


async def test_an_agents_role_does_not_say_when_it_wrote(server: RolesServer) -> None:  # noqa: F811
    """Or it would write what is right when the outcome is known, and date it before what it had written."""
    url = await agent(server, "mallory")
    await write(url, "mallory", trajectoryId="honest", id="honest")
    await write(url, "mallory", trajectoryId="hindsight", id="hindsight", createdAt=naive(at(1)))
    async with server.owner() as owner:
        await insert_window(owner, agents=3)
        rows = await owner.fetch(
            "SELECT \"trajectoryId\", now() AT TIME ZONE 'UTC' - \"createdAt\" < interval '1 hour' AS now"
            ' FROM trajectories WHERE "agentId" = \'mallory\' ORDER BY "createdAt"'
        )
        others = await owner.fetch('SELECT "createdAt" FROM trajectories WHERE "agentId" <> \'mallory\'')
    assert [tuple(row) for row in rows] == [("honest", True), ("hindsight", True)]
    assert {row["createdAt"] for row in others} == {naive(at(50))}  # the game's own rows are as it wrote them
