"""Starts and stops through the ledger: once, from any host for any host, and past the death of a host."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.ledger.commands import (
    KeyUsed,
    ask_to_start,
    ask_to_stop,
    finish_start,
    keep_start,
    newest_start,
    take_start,
)
from trainer.ledger.model_lock import ModelBusy, hold

SETTINGS = {"training": {"learning_rate": 0.001}}
QUICK = timedelta(milliseconds=20)


async def start(database: Database, *, model: str = "m", key: str | None = None, run_id: str = "run-1") -> str:
    command = await ask_to_start(database, model, SETTINGS, run_id=run_id, asked_by="somebody", key=key)
    return command.run_id


async def test_many_starts_with_one_key_are_one_run(database: Database) -> None:
    asked = await asyncio.gather(*(start(database, key="click", run_id=f"run-{number}") for number in range(10)))
    assert len(set(asked)) == 1
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.commands") == 1


async def test_a_key_that_was_used_for_something_else_is_refused(database: Database) -> None:
    await start(database, key="click")
    with pytest.raises(KeyUsed, match="another request"):
        await ask_to_start(database, "m", {}, run_id="run-2", asked_by="somebody", key="click")
    with pytest.raises(KeyUsed, match="another request"):
        await start(database, model="other", key="click", run_id="run-3")


async def test_a_second_start_of_a_model_names_the_first(database: Database) -> None:
    await start(database)
    with pytest.raises(ModelBusy, match=r"run-1, waiting, no host yet"):
        await start(database, run_id="run-2")
    assert await start(database, model="other", run_id="run-3") == "run-3"


async def test_a_start_of_a_model_that_is_held_names_who_holds_it(database: Database) -> None:
    async with hold(database, "m"):
        with pytest.raises(ModelBusy, match=r"is being trained by .* \(pid \d+\) since"):
            await start(database)
    assert await start(database) == "run-1"


async def test_a_start_is_taken_by_one_of_many_hosts(database: Database) -> None:
    await start(database)
    taken = [one for one in await asyncio.gather(*(take_start(database) for _ in range(8))) if one is not None]
    assert [one.command.settings for one in taken] == [SETTINGS]
    assert await keep_start(database, taken[0])
    assert await finish_start(database, taken[0], 0, "done", pid=None)
    found = await newest_start(database.pool, "m")
    assert found is not None
    assert (found.state, found.exit_code) == ("done", 0)


async def test_what_a_dead_host_took_is_taken_over_and_it_can_no_longer_finish_it(database: Database) -> None:
    await start(database)
    first = await take_start(database)
    assert first is not None
    assert await take_start(database) is None
    await database.pool.execute("UPDATE hindsight.commands SET heartbeat_at = now() - interval '1 minute'")
    second = await take_start(database)
    assert second is not None
    assert second.command.command_id == first.command.command_id
    assert not await keep_start(database, first)
    assert not await finish_start(database, first, 0, "too late", pid=None)
    assert await finish_start(database, second, 4, "the judge failed", pid=None)


async def test_a_stop_is_seen_by_the_heartbeat_of_whoever_trains(database: Database) -> None:
    stop = asyncio.Event()
    async with hold(database, "m", beat=QUICK, stop=stop), hold(database, "other", beat=QUICK) as other:
        await ask_to_stop(database, "m", asked_by="somebody", reason="enough")
        await asyncio.wait_for(stop.wait(), 30)
        assert not other.stop.is_set()
    state = await database.pool.fetchrow("SELECT state, taken_by, reason FROM hindsight.commands")
    assert state is not None
    assert (state["state"], state["reason"]) == ("done", "enough")


async def test_a_stop_withdraws_a_start_that_no_host_has_taken(database: Database) -> None:
    await start(database)
    assert await ask_to_stop(database, "m", asked_by="somebody", reason="") == "run-1"
    assert await take_start(database) is None
    assert await start(database, run_id="run-2") == "run-2"


async def test_a_stop_that_nobody_saw_does_not_stop_the_next_training(database: Database) -> None:
    async with hold(database, "m"):
        await ask_to_stop(database, "m", asked_by="somebody", reason="")
    await start(database)
    async with hold(database, "m", beat=QUICK) as lock:
        beats = "SELECT heartbeat_at - taken_at > interval '40 milliseconds' FROM hindsight.model_locks"
        while not await database.pool.fetchval(beats):
            await asyncio.sleep(0.01)
        assert not lock.stop.is_set()


async def test_there_is_nothing_to_stop_where_nothing_is_trained(database: Database) -> None:
    with pytest.raises(ConfigurationError, match="nothing to stop"):
        await ask_to_stop(database, "m", asked_by="somebody", reason="")
