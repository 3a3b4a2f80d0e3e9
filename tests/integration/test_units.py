"""Units in the ledger: each is one worker's at a time, and a commit that comes too late changes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from data_bridge.database import Database
from data_bridge.discovery import WindowRef
from trainer.judge.limits import OverBudget, SharedBudget
from trainer.ledger.shared_budget import JobBudget
from trainer.ledger.units import Job, Unit, UnitLedger, UnitResult
from trainer.types import PlannedGroup, PlannedWindow
from trainer.workers.units import MAX_GROUPS, units_of

LEASE = timedelta(minutes=10)


def unit(number: int, groups: int = 1) -> Unit:
    window_id = f"2026-11-02T{number:02d}:00"
    planned = tuple(
        PlannedGroup(f"{window_id}/{one}", (f"{number}-{one}-a", f"{number}-{one}-b")) for one in range(groups)
    )
    return Unit(PlannedWindow(window_id, 1, planned), WindowRef(window_id))


async def opened(database: Database, *units: Unit, max_cost: float | None = None) -> UnitLedger:
    ledger = UnitLedger(database)
    await ledger.open_job(Job("job", "run", {"a": 1}, LEASE, 1, max_cost))
    await ledger.add("job", 0, units)
    return ledger


async def let_leases_end(database: Database) -> None:
    """As if their time had passed."""
    await database.pool.execute("UPDATE hindsight.units SET expires_at = clock_timestamp() WHERE state = 'taken'")


async def test_a_unit_is_given_to_one_worker_and_stored_with_its_result(database: Database) -> None:
    ledger = await opened(database, unit(1), unit(2), unit(3))
    taken = await asyncio.gather(*(ledger.claim("job", f"worker {number}", 1) for number in range(8)))
    claims = [claim for own in taken for claim in own]
    assert sorted(claim.number for claim in claims) == [0, 1, 2]
    assert {claim.unit.planned.window_id for claim in claims} == {
        unit(number).planned.window_id for number in (1, 2, 3)
    }
    for claim in claims:
        assert await ledger.commit("job", claim, UnitResult())
    assert [done.unit for done in sorted(await ledger.done("job", [0, 1, 2]), key=lambda done: done.number)] == [
        unit(1),
        unit(2),
        unit(3),
    ]


async def test_a_late_commit_is_refused(database: Database) -> None:
    ledger = await opened(database, unit(1))
    (slow,) = await ledger.claim("job", "cut off", 1)
    assert await ledger.claim("job", "another", 1) == []
    await let_leases_end(database)
    (other,) = await ledger.claim("job", "another", 1)
    assert (other.number, other.fence) == (slow.number, slow.fence + 1)
    assert not await ledger.commit("job", slow, UnitResult(fault="too late"))
    assert await ledger.commit("job", other, UnitResult())
    assert not await ledger.commit("job", slow, UnitResult(fault="much too late"))
    (done,) = await ledger.done("job", [0])
    assert done.result.fault is None


async def test_a_heartbeat_keeps_the_lease_and_says_what_is_lost(database: Database) -> None:
    ledger = await opened(database, unit(1), unit(2))
    (mine,) = await ledger.claim("job", "mine", 1)
    await let_leases_end(database)
    beat = await ledger.beat("job", "mine", [mine.number])
    assert beat.held == {(mine.number, mine.fence)}
    (theirs,) = await ledger.claim("job", "theirs", 1)
    assert theirs.number != mine.number
    await let_leases_end(database)
    (again,) = [claim for claim in await ledger.claim("job", "third", 2) if claim.number == mine.number]
    assert not (await ledger.beat("job", "mine", [mine.number])).held
    assert again.fence == mine.fence + 1
    await ledger.close_job("job")
    assert not (await ledger.beat("job", "mine", [])).is_open
    assert await ledger.claim("job", "mine", 1) == []


async def test_several_workers_leave_each_other_small_units(database: Database) -> None:
    ledger = await opened(database, *(unit(number) for number in range(1, 9)))
    first = await ledger.claim("job", "first", 8)
    assert len(first) == 4, "half of what waits, for one worker"
    assert len(await ledger.claim("job", "second", 8)) == 2


async def test_one_ceiling_holds_for_all_workers(database: Database) -> None:
    await opened(database, max_cost=1.0)
    budgets = [SharedBudget(1.0, JobBudget(database, "job")) for _ in range(4)]
    paid = 0.0

    async def call(budget: SharedBudget) -> None:
        nonlocal paid
        async with budget.set_aside(0.2):
            await asyncio.sleep(0.01)
            budget.pay(0.15)
            paid += 0.15

    for _ in range(3):
        await asyncio.gather(*(call(budget) for budget in budgets), return_exceptions=True)
    assert 0.75 <= paid <= 1.0
    with pytest.raises(OverBudget):
        await call(budgets[0])
    assert await database.pool.fetchval("SELECT committed_usd FROM hindsight.unit_jobs") == pytest.approx(paid)


def test_a_window_of_any_size_is_cut_into_units() -> None:
    large = unit(1, groups=2 * MAX_GROUPS + 1)
    cut = list(units_of([(large.planned, large.ref), (unit(2, groups=0).planned, unit(2).ref)]))
    assert [len(one.planned.groups) for one in cut] == [MAX_GROUPS, MAX_GROUPS, 1, 0]
    assert [one.is_last for one in cut] == [False, False, True, True]
    assert tuple(group for one in cut[:3] for group in one.planned.groups) == large.planned.groups
    assert cut[1].name == "window 2026-11-02T01:00, slice 2 of 3"
