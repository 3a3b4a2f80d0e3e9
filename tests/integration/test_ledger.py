"""The ledger on a real Postgres: all or nothing, once, and only along the legal transitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import product

import asyncpg
import pytest

from data_bridge.database import Database
from data_bridge.errors import DatabaseError
from data_bridge.game_writes import NEEDED_COLUMNS, check_writable, unmark_trained
from data_bridge.quality import Exclusion, Reason
from tests.builders import WINDOW, insert_window
from tests.builders_judge import make_group
from tests.builders_ledger import make_record
from trainer.config.sections import SelectionSettings
from trainer.ledger.batch_records import BatchRecord
from trainer.ledger.batches import write_game_rows
from trainer.ledger.model_lock import ModelLock, hold
from trainer.ledger.runs import Ledger
from trainer.ledger.states import (
    BATCH_TRANSITIONS,
    DECIDED_REASONS,
    FINAL_REASONS,
    RUN_TRANSITIONS,
    BatchState,
    RunState,
)
from trainer.progress import FailurePolicy, Progress
from trainer.train.selection import VerdictStage
from trainer.types import Checkpoint, JudgeFailure, PlannedGroup, PlannedWindow, RunPlan, StepResult

RESULT = StepResult(Checkpoint("hindsight", 1, "tiny", "fake", "/somewhere/0001"), 10, {"loss": 0.5})


def plan_of(*trajectory_ids: str) -> RunPlan:
    window = PlannedWindow(WINDOW, 1, (PlannedGroup(f"{WINDOW}/1", trajectory_ids),))
    left_out = Exclusion("t-dropped", "agent-9", WINDOW, Reason.DROPOUT)
    return RunPlan((window,), (left_out,), 0.25, 4)


@pytest.fixture
async def lock(database: Database) -> AsyncIterator[ModelLock]:
    async with hold(database, "hindsight") as held:
        yield held


@pytest.fixture
async def ledger(database: Database) -> Ledger:
    return Ledger(database)


async def start(ledger: Ledger, *trajectory_ids: str, run_id: str = "run-1") -> None:
    await ledger.start_run(
        run_id,
        model="hindsight",
        base_model="tiny",
        backend="fake",
        fingerprint="same",
        settings={"seed": 0},
        plan=plan_of(*trajectory_ids),
    )


async def test_a_durable_batch_writes_the_games_rows_in_the_same_transaction(
    database: Database, ledger: Ledger, lock: ModelLock
) -> None:
    ids = await insert_window(database.pool, agents=3)
    await start(ledger, *ids)
    record = make_record(ids)
    await ledger.batch_prepared(lock, record)
    await ledger.batch_submitted(lock, record.batch_id, "job-7")
    before = await database.pool.fetch('SELECT "usedInTraining" FROM trajectories')
    assert not any(row["usedInTraining"] for row in before)

    await ledger.batch_trained(lock, record, RESULT, {"reward": float("nan"), "kl": 0.1})

    rows = await database.pool.fetch(
        'SELECT "usedInTraining", "trainedInBatch", "aiJudgeReward", "judgedAt", "updatedAt" > "createdAt" AS touched'
        ' FROM trajectories ORDER BY "agentId"'
    )
    assert [(row["usedInTraining"], row["trainedInBatch"], row["touched"]) for row in rows] == [
        (True, "batch-1", True)
    ] * 3
    assert [row["aiJudgeReward"] for row in rows] == pytest.approx([0, 1 / 3, 2 / 3])
    assert await database.pool.fetchval("SELECT count(*) FROM reward_judgments") == 3
    batch = await database.pool.fetchrow("SELECT * FROM training_batches")
    assert batch is not None
    assert (batch["batchId"], batch["modelVersion"], batch["status"]) == ("batch-1", "hindsight@step1", "completed")
    checkpoint = await ledger.newest_checkpoint("hindsight")
    assert checkpoint == RESULT.checkpoint
    assert await database.pool.fetchval("SELECT state FROM hindsight.windows") == "trained"
    assert await ledger.open_windows("run-1") == ()


async def test_when_the_games_rows_cannot_be_written_nothing_is(
    database: Database, ledger: Ledger, lock: ModelLock
) -> None:
    ids = await insert_window(database.pool, agents=3)
    await start(ledger, *ids)
    record = make_record(ids)
    await ledger.batch_prepared(lock, record)
    await database.pool.execute('ALTER TABLE trajectories DROP COLUMN "trainedInBatch"')

    with pytest.raises(asyncpg.UndefinedColumnError):
        await ledger.batch_trained(lock, record, RESULT, {})

    assert await database.pool.fetchval("SELECT state FROM hindsight.batches") == "prepared"
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.checkpoints") == 0
    assert await database.pool.fetchval('SELECT count(*) FROM trajectories WHERE "aiJudgeReward" IS NOT NULL') == 0
    assert await ledger.unfinished_batch("hindsight") == record


Need = tuple[str, str, str]
"""A table of the game's, a privilege and a column."""

NEEDS: list[Need] = [
    (table, privilege, column)
    for table, needed in NEEDED_COLUMNS.items()
    for privilege, columns in needed.items()
    for column in columns
]


@asynccontextmanager
async def for_a_moment(database: Database) -> AsyncIterator[Database]:
    """The database on one connection whose deeds are undone afterwards."""
    async with database.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            yield Database(connection, is_embedded=False, label="the game")  # type: ignore[arg-type]  # as its pool
        finally:
            await transaction.rollback()


async def become_a_role_with(needs: Iterable[Need], database: Database) -> None:
    """From now on nothing but ``needs`` is allowed in the game's tables."""
    await database.pool.execute("CREATE ROLE trains; GRANT USAGE ON SCHEMA hindsight TO trains")
    await database.pool.execute("GRANT SELECT ON hindsight.batches TO trains")
    for table, privilege, column in needs:
        await database.pool.execute(f'GRANT {privilege} ("{column}") ON {table} TO trains')
    await database.pool.execute("SET LOCAL ROLE trains")


async def keep_the_books(database: Database, record: BatchRecord) -> None:
    """All that training ever does with the game's rows: a batch trained, judged again, and lost."""
    await write_game_rows(database.pool, record, RESULT)
    await write_game_rows(database.pool, record, RESULT)
    await unmark_trained(database.pool, record.batch_id, [one.trajectory_id for *_, one in record.members()])


async def test_what_is_asked_for_before_anything_is_paid_is_exactly_what_the_books_need(
    database: Database, ledger: Ledger, lock: ModelLock
) -> None:
    record = make_record(await insert_window(database.pool, agents=3))
    await start(ledger, *(verdict.trajectory_id for *_, verdict in record.members()))
    await ledger.batch_prepared(lock, record)
    async with for_a_moment(database) as moment:
        await become_a_role_with(NEEDS, moment)
        await check_writable(moment)
        await keep_the_books(moment, record)
    for missing in NEEDS:
        table, privilege, column = missing
        async with for_a_moment(database) as moment:
            await become_a_role_with([need for need in NEEDS if need != missing], moment)
            with pytest.raises(DatabaseError, match=f'may not {privilege} "{column}" of {table}'):
                await check_writable(moment)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await keep_the_books(moment, record)


async def test_a_missing_column_is_named_before_anything_is_paid(database: Database) -> None:
    for table, column in {(table, column) for table, _, column in NEEDS}:
        async with for_a_moment(database) as moment:
            await moment.pool.execute(f'ALTER TABLE {table} DROP COLUMN "{column}" CASCADE')
            with pytest.raises(DatabaseError, match=f'no column "{column}" in {table}'):
                await check_writable(moment)


async def test_a_trajectory_is_in_one_batch_of_a_model(database: Database, ledger: Ledger, lock: ModelLock) -> None:
    await start(ledger, "t1", "t2")
    await ledger.batch_prepared(lock, make_record(["t1", "t2"]))
    await ledger.batch_trained(lock, make_record(["t1", "t2"]), RESULT, {})
    with pytest.raises(asyncpg.UniqueViolationError, match="trained_once"):
        await ledger.batch_prepared(lock, make_record(["t2", "t3"], batch_id="batch-2", number=2))
    assert set(await ledger.trained_ids("hindsight", [WINDOW])) == {"t1", "t2"}


async def test_a_failed_batch_gives_its_trajectories_back(ledger: Ledger, lock: ModelLock) -> None:
    await start(ledger, "t1", "t2")
    await ledger.batch_prepared(lock, make_record(["t1", "t2"]))
    await ledger.batch_failed(lock, "batch-1", "never taken")
    assert await ledger.trained_ids("hindsight", [WINDOW]) == {}
    await ledger.batch_prepared(lock, make_record(["t1", "t2"], batch_id="batch-2", number=2))


async def test_a_model_has_one_unfinished_batch_at_most(ledger: Ledger, lock: ModelLock) -> None:
    await start(ledger, "t1", "t2")
    await ledger.batch_prepared(lock, make_record(["t1", "t2"]))
    with pytest.raises(asyncpg.UniqueViolationError, match="one_unfinished_batch"):
        await ledger.batch_prepared(lock, make_record(["t3", "t4"], batch_id="batch-2", number=2))


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in product(BatchState, BatchState) if pair[1] is not BatchState.PREPARED]
)
async def test_batches_move_only_along_the_table(
    database: Database, ledger: Ledger, lock: ModelLock, source: BatchState, target: BatchState
) -> None:
    await start(ledger, "t1", "t2")
    record = make_record(["t1", "t2"])
    await ledger.batch_prepared(lock, record)
    await database.pool.execute("UPDATE hindsight.batches SET state = $1", source.value)

    async def move() -> None:
        match target:
            case BatchState.SUBMITTED:
                await ledger.batch_submitted(lock, record.batch_id, "job")
            case BatchState.TRAINED:
                await ledger.batch_trained(lock, record, RESULT, {})
            case BatchState.FAILED:
                await ledger.batch_failed(lock, record.batch_id, "no")
            case BatchState.LOST:
                await database.pool.execute(
                    "INSERT INTO hindsight.checkpoints VALUES ('hindsight', 1, 'run-1', 'batch-1', 'tiny', 'fake', '/')"
                )
                await ledger.steps_lost(lock, 0)

    if target in BATCH_TRANSITIONS[source]:
        await move()
        assert await database.pool.fetchval("SELECT state FROM hindsight.batches") == target.value
    else:
        with pytest.raises(DatabaseError, match=f"cannot become '{target.value}'"):
            await move()
        assert await database.pool.fetchval("SELECT state FROM hindsight.batches") == source.value


@pytest.mark.parametrize(("source", "target"), list(product(RunState, RunState)))
async def test_runs_move_only_along_the_table(
    database: Database, ledger: Ledger, source: RunState, target: RunState
) -> None:
    await start(ledger, "t1", "t2")
    await database.pool.execute("UPDATE hindsight.runs SET state = $1", source.value)

    async def move() -> None:
        if target is RunState.RUNNING:
            await ledger.resume_run("run-1", {}, RunPlan((), (), 0.0, 0))
        else:
            await ledger.finish_run("run-1", target)

    if target in RUN_TRANSITIONS[source]:
        await move()
        assert await database.pool.fetchval("SELECT state FROM hindsight.runs") == target.value
    else:
        with pytest.raises(DatabaseError, match="cannot become"):
            await move()


async def test_an_unfinished_run_is_found_only_with_the_same_settings(ledger: Ledger) -> None:
    assert await ledger.find_unfinished_run("hindsight", "same") is None
    await start(ledger, "t1", "t2")
    found = await ledger.find_unfinished_run("hindsight", "same")
    assert found is not None
    assert (found.run_id, found.dropout_rate) == ("run-1", 0.25)
    assert await ledger.find_unfinished_run("hindsight", "other") is None
    await ledger.finish_run("run-1", RunState.DONE)
    assert await ledger.find_unfinished_run("hindsight", "same") is None


async def test_exclusions_are_counted_and_the_last_reason_holds(ledger: Ledger) -> None:
    await start(ledger, "t1", "t2")
    await ledger.exclude("run-1", [Exclusion("t1", "a", WINDOW, Reason.JUDGE_UNAVAILABLE)])
    await ledger.exclude("run-1", [Exclusion("t1", "a", WINDOW, Reason.NO_SPREAD)])
    assert await ledger.exclusion_counts("run-1") == {"dropout": 1, "no_spread": 1}


async def test_a_group_that_was_not_asked_about_is_no_failure_of_the_judge_and_is_decided_for_good(
    ledger: Ledger,
) -> None:
    groups = [make_group(1.0, 1.0, group_id=f"group-{number}") for number in range(10)]
    await start(ledger, "trajectory-1", "trajectory-2")
    progress = Progress(groups=len(groups))
    stage = VerdictStage(SelectionSettings(), FailurePolicy(), "run-1", ledger, progress)
    for group in groups:
        assert await stage.accept(JudgeFailure(group, Reason.EQUAL_DECISIONS, "all did the same")) is None
    assert (progress.groups_without_signal, progress.groups_failed) == (10, 0)
    assert stage.left_out == {Reason.EQUAL_DECISIONS: 20}
    counts = await ledger.exclusion_counts("run-1")
    assert counts == {"dropout": 1, "equal_decisions": 2}, "a row has one reason"
    assert Reason.EQUAL_DECISIONS in FINAL_REASONS
    assert Reason.EQUAL_DECISIONS in DECIDED_REASONS


async def test_what_a_lost_checkpoint_had_learnt_can_be_trained_again(
    database: Database, ledger: Ledger, lock: ModelLock
) -> None:
    ids = await insert_window(database.pool, agents=3)
    await start(ledger, *ids)
    await ledger.batch_prepared(lock, make_record(ids))
    await ledger.batch_trained(lock, make_record(ids), RESULT, {})

    assert await ledger.steps_lost(lock, 0) == [1]

    assert await ledger.newest_checkpoint("hindsight") is None
    assert await database.pool.fetchval('SELECT bool_or("usedInTraining") FROM trajectories') is False
    assert await ledger.trained_ids("hindsight", [WINDOW]) == {}
    assert len(await ledger.open_windows("run-1")) == 1
    await ledger.batch_prepared(lock, make_record(ids, batch_id="batch-2", number=2))
    await ledger.batch_trained(lock, make_record(ids, batch_id="batch-2", number=2), RESULT, {})
