"""Promotion and rollback on a real Postgres: exactly one deployed model, whoever looks and whatever dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData
from tests.builders import insert_window
from tests.builders_evaluation import make_checkpoint, make_evaluation
from tests.builders_promotion import insert_checkpoint
from trainer.ledger.checkpoints import list_checkpoints
from trainer.ledger.evaluations import save
from trainer.ledger.model_lock import hold
from trainer.ledger.releases import Pointer, history, move_promotion, read_from_database, read_pointer, serving, sync
from trainer.ledger.states import PROMOTION_TRANSITIONS, PromotionKind, PromotionState
from trainer.promote import publish as publishing
from trainer.promote.publish import IncumbentChanged, canary_agents, end_canary, finish_canary, publish, roll_back
from trainer.types import Checkpoint, Serving


def _at(checkpoint: Checkpoint) -> Serving:
    return Serving("http://127.0.0.1:8808/v1", checkpoint.name)


async def _publish(database: Database, home: Path, checkpoint: Checkpoint, **more: Any) -> Any:
    return await publish(database, home, checkpoint.as_release(), _at(checkpoint), reason="better", **more)


async def _on_this_host(database: Database, home: Path, step: int) -> Checkpoint:
    """A checkpoint that ``serve.py`` can give to some agents and not to others."""
    return await insert_checkpoint(database, step, backend="cpu", location=home)


async def _models(database: Database) -> dict[str, str]:
    rows = await database.pool.fetch('SELECT "modelId", status FROM "trained_models" ORDER BY 1')
    return {row["modelId"]: row["status"] for row in rows}


async def test_a_promoted_checkpoint_is_what_the_game_the_ledger_and_the_file_name(
    database: Database, tmp_path: Path
) -> None:
    first, second = await insert_checkpoint(database, 1), await insert_checkpoint(database, 2)
    await _publish(database, tmp_path, first)
    evaluation = replace(make_evaluation(2), incumbent=first.as_release())
    await save(database, evaluation)

    promotion = await _publish(database, tmp_path, second, evaluation=evaluation)

    assert promotion.served_model == "hindsight@step2"
    assert await _models(database) == {"hindsight@step1": "archived", "hindsight@step2": "deployed"}
    row = await database.pool.fetchrow("SELECT * FROM \"trained_models\" WHERE status = 'deployed'")
    assert row is not None
    assert row["trainingBatch"] == "hindsight-batch-2"
    assert row["avgReward"] == 0.5
    assert row["deployedAt"] is not None
    assert row["updatedAt"] == row["deployedAt"]
    assert '"baseUrl": "http://127.0.0.1:8808/v1"' in row["evalMetrics"]
    assert '"gainLow": 0.1' in row["evalMetrics"]
    pointer = read_pointer(tmp_path, "hindsight")
    assert pointer is not None
    assert pointer.serving == promotion == await serving(database, "hindsight")
    assert [past.state for past in await history(database, "hindsight")] == ["serving", "superseded"]


async def test_a_model_that_somebody_else_deployed_is_archived(database: Database, tmp_path: Path) -> None:
    await database.pool.execute(
        'INSERT INTO "trained_models" (id, "modelId", version, "baseModel", status, "storagePath", "updatedAt")'
        " VALUES ('old', 'old', '1', 'b', 'deployed', 'x', now()), ('new', 'new', '1', 'b', 'ready', 'x', now())"
    )
    await _publish(database, tmp_path, await insert_checkpoint(database, 1))
    assert await _models(database) == {"old": "archived", "new": "archived", "hindsight@step1": "deployed"}


# Death


class _Mortal:
    """A connection whose server process is killed just before its ``fatal``-th statement; commit counts as one."""

    def __init__(self, connection: Any, killer: asyncpg.Connection, fatal: int) -> None:
        self._connection, self._killer, self._left = connection, killer, fatal

    async def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            await self._killer.execute("SELECT pg_terminate_backend($1)", self._connection.get_server_pid())

    def __getattr__(self, name: str) -> Any:
        async def statement(*arguments: Any) -> Any:
            await self._count()
            return await getattr(self._connection, name)(*arguments)

        return statement

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            yield
            await self._count()


class _MortalPool:
    def __init__(self, pool: Any, killer: asyncpg.Connection, fatal: int) -> None:
        self._pool, self._killer, self._fatal = pool, killer, fatal

    async def fetchval(self, *arguments: Any) -> Any:
        """What is asked before the transaction cannot break it."""
        return await self._pool.fetchval(*arguments)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[_Mortal]:
        async with self._pool.acquire() as connection:
            yield _Mortal(connection, self._killer, self._fatal)


_DEATHS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, ConnectionError)
"""What a client can see of it, depending on how far the news of its end has come."""


def _mortal(database: Database, killer: asyncpg.Connection, fatal: int) -> Database:
    return replace(database, pool=_MortalPool(database.pool, killer, fatal))  # type: ignore[arg-type]  # stands in for a pool


@pytest.fixture
async def killer(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("what", ["publish", "canary", "finish", "rollback"])
async def test_death_before_any_statement_leaves_exactly_one_deployed_model(
    what: str,
    database: Database,
    database_url: str,
    killer: asyncpg.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = [await _on_this_host(database, tmp_path, step) for step in (1, 2)]
    await insert_window(database.pool, agents=4)
    await _publish(database, tmp_path, first)
    if what in ("finish", "rollback"):
        await _publish(database, tmp_path, second, canary=0.25 if what == "finish" else None)
    before = (await _models(database), await read_from_database(database, "hindsight"))
    seen: list[list[str]] = []

    async def watch() -> None:
        while True:
            rows = await killer.fetch(
                "SELECT \"modelId\" FROM \"trained_models\" WHERE status IN ('ready', 'deployed')"
            )
            seen.append([row["modelId"] for row in rows])
            await asyncio.sleep(0.001)

    async def attempt(on: Database) -> None:
        if what == "publish":
            await _publish(on, tmp_path, second)
        elif what == "canary":
            await _publish(on, tmp_path, second, canary=0.25)
        elif what == "finish":
            await finish_canary(on, tmp_path, "hindsight", outcome="not worse")
        else:
            await roll_back(on, tmp_path, "hindsight", _at, step=None, reason="worse")

    # the copy on disk is another test's: here everything ends with the transaction
    async def no_copy(*_: Any) -> None: ...

    monkeypatch.setattr(publishing, "sync", no_copy)
    assassin = await asyncpg.connect(database_url)
    watching = asyncio.create_task(watch())
    deaths = 0
    try:
        while True:
            with suppress(*_DEATHS):
                await attempt(_mortal(database, assassin, deaths + 1))
                break
            deaths += 1
            assert (await _models(database), await read_from_database(database, "hindsight")) == before
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await assassin.close()

    assert deaths >= 6, "every statement of it was tried"
    assert len(seen) > deaths
    assert all(len(models) == 1 for models in seen)
    after = {"publish": 2, "canary": 1, "finish": 2, "rollback": 1}[what]
    deployed = [model for model, status in (await _models(database)).items() if status == "deployed"]
    assert deployed == [f"hindsight@step{after}"]


async def test_death_between_commit_and_copy_is_mended_by_the_next_look(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await insert_checkpoint(database, 1), await insert_checkpoint(database, 2)
    await _publish(database, tmp_path, first)

    async def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publishing, "sync", die)
    with pytest.raises(KeyboardInterrupt):
        await _publish(database, tmp_path, second)
    stale = read_pointer(tmp_path, "hindsight")
    assert stale is not None
    assert stale.serving is not None
    assert stale.serving.checkpoint.step == 1

    mended = await sync(database, tmp_path, "hindsight")
    assert mended.serving is not None
    assert mended.serving.checkpoint.step == 2
    assert read_pointer(tmp_path, "hindsight") == mended
    assert [path.name for path in (tmp_path / "promoted").iterdir()] == ["hindsight.json"], "no temporary file is left"


async def test_promotions_at_the_same_moment_follow_each_other(database: Database, tmp_path: Path) -> None:
    points = [await insert_checkpoint(database, step) for step in range(1, 7)]
    await asyncio.gather(*(_publish(database, tmp_path, point) for point in points))
    assert list((await _models(database)).values()).count("deployed") == 1
    pointer = read_pointer(tmp_path, "hindsight")
    assert pointer == await read_from_database(database, "hindsight")


@pytest.mark.parametrize(
    "compared_with", [None, make_checkpoint(1), make_checkpoint(2, "another")], ids=["base", "step1", "another model"]
)
async def test_evidence_against_anything_but_what_the_agents_use_now_promotes_nothing(
    database: Database, tmp_path: Path, compared_with: Checkpoint | None
) -> None:
    points = [await insert_checkpoint(database, step) for step in (1, 2, 3)]
    await _publish(database, tmp_path, points[1])
    evaluation = replace(make_evaluation(3), incumbent=None if compared_with is None else compared_with.as_release())
    await save(database, evaluation)
    with pytest.raises(IncumbentChanged, match="and is hindsight@step2 now: evaluate hindsight@step3 again"):
        await _publish(database, tmp_path, points[2], evaluation=evaluation)
    assert await _models(database) == {"hindsight@step2": "deployed"}
    await _publish(database, tmp_path, points[2], evaluation=evaluation, forced=True)
    assert (await _models(database))["hindsight@step3"] == "deployed"


# Rollback


async def test_rollback_goes_to_the_one_before_then_further_and_at_last_to_the_base_model(
    database: Database, tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        point = await insert_checkpoint(database, step)
        if step != 2:
            await _publish(database, tmp_path, point)
    back = await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="agents lose money")
    assert (back.checkpoint.step, back.kind, back.reason) == (1, PromotionKind.ROLLBACK, "agents lose money")
    again = await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="still")
    assert again.checkpoint == Checkpoint(
        "hindsight", 0, "base", "serverless", "wandb-artifact:///team/game/hindsight:step0"
    )
    assert (await _models(database))["hindsight@step0"] == "deployed"
    forward = await roll_back(database, tmp_path, "hindsight", _at, step=2, reason="that one was fine")
    assert forward.checkpoint.step == 2
    states = [(past.checkpoint.step, past.state.value) for past in await history(database, "hindsight")]
    assert states[:3] == [(2, "serving"), (0, "rolled_back"), (1, "rolled_back")]


async def test_rollback_goes_by_what_served_before_and_not_by_its_number(database: Database, tmp_path: Path) -> None:
    points = {step: await insert_checkpoint(database, step) for step in (2, 3, 5)}
    for step in (2, 5, 3):
        await _publish(database, tmp_path, points[step])
    steps = [
        (await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="worse")).checkpoint.step
        for _ in range(3)
    ]
    assert steps == [5, 2, 0], "never to one that was itself taken away"
    with pytest.raises(ConfigurationError, match="The agents already use hindsight@step0"):
        await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="worse")


async def test_a_step_that_served_twice_and_was_taken_away_is_no_way_back(database: Database, tmp_path: Path) -> None:
    points = {step: await insert_checkpoint(database, step) for step in (3, 4)}
    for step in (3, 4, 3):
        await _publish(database, tmp_path, points[step])
    for expected in (4, 0):
        back = await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="worse")
        assert back.checkpoint.step == expected


@pytest.mark.parametrize(
    ("step", "told"), [(1, "already"), (2, "newer than anything the agents used"), (9, "no checkpoint of step 9")]
)
async def test_a_rollback_that_makes_no_sense_changes_nothing(
    database: Database, tmp_path: Path, step: int, told: str
) -> None:
    await _publish(database, tmp_path, await insert_checkpoint(database, 1))
    await insert_checkpoint(database, 2)
    with pytest.raises(ConfigurationError, match=told):
        await roll_back(database, tmp_path, "hindsight", _at, step=step, reason="?")
    assert await _models(database) == {"hindsight@step1": "deployed"}


async def test_nothing_to_roll_back_is_said_so(database: Database, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing to roll back"):
        await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="?")


async def test_rollback_does_not_wait_for_a_running_training(database: Database, tmp_path: Path) -> None:
    for step in (1, 2):
        await _publish(database, tmp_path, await insert_checkpoint(database, step))
    async with hold(database, "hindsight"):
        back = await asyncio.wait_for(
            roll_back(database, tmp_path, "hindsight", _at, step=None, reason="worse"), timeout=60
        )
    assert back.checkpoint.step == 1


async def test_a_checkpoint_whose_files_are_gone_is_not_given_to_agents(database: Database, tmp_path: Path) -> None:
    gone = await insert_checkpoint(database, 1, backend="cpu", location=tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="are not in"):
        await _publish(database, tmp_path, gone)
    assert await _models(database) == {}


# Canary


def _step_for(pointer: Pointer, agent_id: str | None) -> int:
    promotion = pointer.for_agent(agent_id)
    assert promotion is not None
    return promotion.checkpoint.step


async def test_a_canary_marks_its_agents_and_everybody_else_stays(database: Database, tmp_path: Path) -> None:
    first, second = [await _on_this_host(database, tmp_path, step) for step in (1, 2)]
    await insert_window(database.pool, agents=10)
    await _publish(database, tmp_path, first)
    trial = await _publish(database, tmp_path, second, canary=0.2)

    assert trial.state is PromotionState.CANARY
    assert await _models(database) == {"hindsight@step1": "deployed", "hindsight@step2": "canary"}
    pointer = read_pointer(tmp_path, "hindsight")
    assert pointer is not None
    assert pointer.canary is not None
    assert len(pointer.canary.agents) == 2
    steps = [_step_for(pointer, f"agent-{n}") for n in range(1, 11)]
    assert sorted(steps) == [1] * 8 + [2] * 2
    assert _step_for(pointer, None) == 1

    ended = await end_canary(database, tmp_path, "hindsight", outcome="its agents lost money")
    assert ended.outcome == "its agents lost money"
    assert await _models(database) == {"hindsight@step1": "deployed", "hindsight@step2": "archived"}
    with pytest.raises(ConfigurationError, match="No canary"):
        await finish_canary(database, tmp_path, "hindsight", outcome="?")


async def test_a_new_promotion_ends_a_canary(database: Database, tmp_path: Path) -> None:
    points = [await _on_this_host(database, tmp_path, step) for step in (1, 2, 3)]
    await insert_window(database.pool, agents=3)
    await _publish(database, tmp_path, points[0])
    await _publish(database, tmp_path, points[1], canary=0.5)
    await _publish(database, tmp_path, points[2])
    assert [past.state.value for past in await history(database, "hindsight")] == [
        "serving",
        "superseded",
        "superseded",
    ]
    assert list((await _models(database)).values()) == ["archived", "archived", "deployed"]


async def test_a_new_canary_takes_the_place_of_the_last_one(database: Database, tmp_path: Path) -> None:
    points = [await _on_this_host(database, tmp_path, step) for step in (1, 2, 3)]
    await insert_window(database.pool, agents=3)
    await _publish(database, tmp_path, points[0])
    await _publish(database, tmp_path, points[1], canary=0.5)
    await _publish(database, tmp_path, points[2], canary=0.5)
    assert list((await _models(database)).values()) == ["deployed", "archived", "canary"]


async def test_a_canary_that_no_server_could_route_is_refused(database: Database, tmp_path: Path) -> None:
    await insert_window(database.pool, agents=3)
    with pytest.raises(
        ConfigurationError, match=r"serverless backend gives every agent the same checkpoint: promote without --can"
    ):
        await _publish(database, tmp_path, await insert_checkpoint(database, 1), canary=0.5)
    assert await _models(database) == {}


async def test_a_canary_without_agents_is_refused(database: Database, tmp_path: Path) -> None:
    point = await _on_this_host(database, tmp_path, 1)
    with pytest.raises(NotEnoughData, match="at least two agents"):
        await _publish(database, tmp_path, point, canary=0.5)
    assert await _models(database) == {}


def test_a_canary_is_at_least_one_agent_never_all_and_others_the_next_time() -> None:
    agents = [f"agent-{n}" for n in range(40)]
    assert len(canary_agents(agents, 0.01, salt="1")) == 1
    assert len(canary_agents(agents[:2], 0.99, salt="1")) == 1
    assert canary_agents(agents, 0.25, salt="1") == canary_agents(agents[::-1], 0.25, salt="1")
    assert canary_agents(agents, 0.25, salt="1") != canary_agents(agents, 0.25, salt="2")


# States and listing


@pytest.mark.parametrize("source", list(PromotionState))
@pytest.mark.parametrize("target", list(PromotionState))
async def test_only_the_legal_transitions_can_be_written(
    source: PromotionState, target: PromotionState, database: Database, tmp_path: Path
) -> None:
    promotion = await _publish(database, tmp_path, await insert_checkpoint(database, 1))
    await database.pool.execute("UPDATE hindsight.promotions SET state = $1", source.value)
    promotion = replace(promotion, state=source)
    async with database.pool.acquire() as connection:
        if target in PROMOTION_TRANSITIONS[source]:
            assert (await move_promotion(connection, promotion, target)).state is target
        else:
            with pytest.raises(ValueError, match="cannot go from"):
                await move_promotion(connection, promotion, target)


async def test_the_list_shows_step_scores_state_and_lineage(database: Database, tmp_path: Path) -> None:
    points = [await insert_checkpoint(database, step) for step in (1, 2, 3)]
    await save(database, make_evaluation(1))
    await database.pool.execute("UPDATE hindsight.evaluations SET ruling = 'refuse', reasons = '{no gain}'")
    await _publish(database, tmp_path, points[1])
    newest, served, refused = await list_checkpoints(database, "hindsight")
    assert (newest.checkpoint.step, newest.state, newest.gain) == (3, "new", None)
    assert (served.state, served.batch_id, served.windows, served.mean_score) == (
        "serving",
        "hindsight-batch-2",
        2,
        0.5,
    )
    assert (refused.state, refused.reason, refused.gain_low, refused.run_id) == ("refused", "no gain", 0.1, "run-1")
