"""One trainer at a time: the second is told who works, a dead one is replaced, a sleeper cannot write."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta

import pytest

from data_bridge.database import Database
from tests.builders_ledger import make_record
from trainer.ledger import model_lock
from trainer.ledger.model_lock import LEASE, ModelBusy, hold
from trainer.ledger.runs import Ledger


async def test_a_second_trainer_is_told_who_holds_the_model(database: Database) -> None:
    async with hold(database, "hindsight"):
        with pytest.raises(ModelBusy, match=rf"being trained by .* \(pid {os.getpid()}\)") as caught:
            async with hold(database, "hindsight"):
                pass
        assert caught.value.exit_code == 2
        async with hold(database, "another"):
            pass
    async with hold(database, "hindsight"):
        pass


async def test_of_many_that_start_at_once_one_gets_the_model(database: Database) -> None:
    holding = refused = 0

    async def try_to_hold() -> bool:
        nonlocal holding, refused
        try:
            async with hold(database, "hindsight"):
                holding += 1
                assert holding == 1
                while refused < 5:
                    await asyncio.sleep(0.01)
                holding -= 1
            return True
        except ModelBusy:
            refused += 1
            return False

    async with asyncio.timeout(60):
        won = await asyncio.gather(*(try_to_hold() for _ in range(6)))
    assert sum(won) == 1


def _pid_of_a_dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


async def _hold_as_dead_process(database: Database) -> None:
    await database.pool.execute(
        "INSERT INTO hindsight.model_locks (model, token, holder, host, pid, process)"
        " VALUES ('hindsight', 'old', 'here (pid 1)', $1, $2, '12345')",
        model_lock._host(),
        _pid_of_a_dead_process(),
    )


async def test_a_dead_process_on_this_host_is_replaced_at_once(database: Database) -> None:
    await _hold_as_dead_process(database)
    async with hold(database, "hindsight") as lock:
        assert lock.token != "old"


async def test_another_host_is_replaced_when_its_lease_has_ended_and_not_before(database: Database) -> None:
    await database.pool.execute(
        "INSERT INTO hindsight.model_locks (model, token, holder, host, pid, process)"
        " VALUES ('hindsight', 'old', 'elsewhere (pid 7)', 'elsewhere', 7, '1')"
    )
    with pytest.raises(ModelBusy, match="elsewhere"):
        async with hold(database, "hindsight"):
            pass
    assert timedelta(seconds=15) >= LEASE
    await database.pool.execute("UPDATE hindsight.model_locks SET heartbeat_at = now() - $1::interval", LEASE)
    async with hold(database, "hindsight"):
        pass


async def test_a_trainer_that_slept_through_a_takeover_can_write_nothing(database: Database) -> None:
    ledger = Ledger(database)
    async with hold(database, "hindsight", beat=timedelta(milliseconds=50)) as lock:
        await database.pool.execute("UPDATE hindsight.model_locks SET token = 'of another'")
        with pytest.raises(ModelBusy, match="took over"):
            await ledger.batch_prepared(lock, make_record(["t1", "t2"]))
        await asyncio.wait_for(lock.lost.wait(), 60)
    assert await database.pool.fetchval("SELECT token FROM hindsight.model_locks") == "of another"
