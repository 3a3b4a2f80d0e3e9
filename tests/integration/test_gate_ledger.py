"""The gate's memory on a real Postgres: looking again, asking otherwise or asking at once gains nothing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database, open_database
from data_bridge.window_ids import windows_from
from tests.builders_evaluation import make_checkpoint, make_evaluation
from tests.builders_promotion import insert_checkpoint
from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Role, Ruling, WindowFigures
from trainer.ledger.evaluations import keep_ruling, latest_evaluation, save, spent_in_a_year
from trainer.promote.ruling import rule_on, standing_ruling
from trainer.statistics.gain import SHARE_OF_REST, YEARLY_BUDGET

WINDOWS = windows_from("2026-11-02T00:00", 400)
LIMITS = GateSettings()
FIRST_LOOK = YEARLY_BUDGET / SHARE_OF_REST


def evaluated(
    gain: float, windows: Any = WINDOWS[:40], *, step: int = 1, number: int = 0, **changes: Any
) -> Evaluation:
    """An evaluation that measured ``gain``; ``number`` is its seed, and when it was made."""
    figures = tuple(
        WindowFigures(name, {Role.CANDIDATE: 0.5 + gain + 0.2 * math.sin(1.7 * at), Role.INCUMBENT: 0.5}, {})
        for at, name in enumerate(windows)
    )
    made = make_evaluation(step, evaluation_id=f"{step}/{windows[0]}/{number}")
    when = made.created_at + timedelta(minutes=number)
    return replace(made, windows=figures, seed=number, created_at=when, **changes)


async def ruled(database: Database, evaluation: Evaluation) -> GateDecision:
    await save(database, evaluation)
    return await rule_on(database, evaluation, LIMITS)


async def spent(database: Database) -> float:
    return await spent_in_a_year(database.pool, "hindsight")


async def test_fifty_more_evaluations_with_other_seeds_and_luck_change_no_ruling_and_spend_nothing(
    database: Database,
) -> None:
    assert (await ruled(database, evaluated(0.02))).ruling is Ruling.UNDECIDED
    assert await spent(database) == pytest.approx(FIRST_LOOK)
    for number in range(1, 51):
        luckier = evaluated(0.02 * number, WINDOWS[number % 10 : 40], number=number, samples=number)
        decision = await ruled(database, luckier)
        assert decision.ruling is Ruling.UNDECIDED
        assert decision.reasons[0].startswith("no window is new, so the ruling of")
        assert len(decision.reasons) == 4, "it is said once"
    assert await spent(database) == pytest.approx(FIRST_LOOK)
    assert await database.pool.fetchval("SELECT count(look) FROM hindsight.evaluations") == 1


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"judge": replace(make_evaluation().judge, judge="a milder judge")}, 1),
        ({"incumbent": make_checkpoint(7).as_release()}, 1),
        ({"candidate": replace(make_checkpoint(1).as_release(), prompt_version="friendlier")}, 1),
        ({}, 2),
    ],
    ids=["another judge", "another incumbent", "another prompt", "another candidate"],
)
async def test_a_window_serves_one_comparison_however_else_it_is_asked(
    database: Database, changes: dict[str, Any], step: int
) -> None:
    assert (await ruled(database, evaluated(0.02))).ruling is Ruling.UNDECIDED
    decision = await ruled(database, evaluated(0.9, number=1, step=step, **changes))
    assert decision.ruling is Ruling.UNDECIDED
    assert "its windows served another evaluation" in decision.sentence
    assert await spent(database) == pytest.approx(FIRST_LOOK)


async def test_the_best_of_several_candidates_that_were_only_looked_at_gains_nothing(database: Database) -> None:
    """Comparisons with something that the agents do not use are not ruled on; they use up the windows all the same."""
    for step in (1, 2, 3):
        await save(database, evaluated(0.3 * step, step=step, number=step, incumbent=make_checkpoint(7).as_release()))
    decision = await ruled(database, evaluated(0.9, step=3, number=9))
    assert decision.ruling is Ruling.UNDECIDED
    assert await spent(database) == 0


async def test_a_window_counts_as_it_was_measured_first_also_if_the_ruling_never_came(database: Database) -> None:
    await save(database, evaluated(0.02))  # killed here
    assert (await ruled(database, evaluated(0.9, number=1))).ruling is Ruling.UNDECIDED


async def test_new_windows_add_to_the_evidence_and_are_a_further_look_at_a_stricter_level(database: Database) -> None:
    first = await ruled(database, evaluated(0.07))
    assert first.ruling is Ruling.UNDECIDED
    second = await ruled(database, evaluated(0.3, WINDOWS[40:80], number=1))
    assert second.ruling is Ruling.PROMOTE
    assert second.look is not None
    assert (second.look.number, second.look.level) == (2, 0.0125)
    assert "80 windows" in second.sentence
    assert await spent(database) == pytest.approx(FIRST_LOOK + (YEARLY_BUDGET - FIRST_LOOK) / SHARE_OF_REST)


async def test_too_few_windows_are_no_look_and_count_when_others_have_come(database: Database) -> None:
    assert (await ruled(database, evaluated(0.3, WINDOWS[:8]))).look is None
    assert await spent(database) == 0
    decision = await ruled(database, evaluated(0.3, WINDOWS[8:40], number=1))
    assert decision.look is not None
    assert decision.look.number == 1
    assert "40 windows" in decision.sentence


async def test_rulings_that_are_made_at_once_each_pay_from_what_the_others_left(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    each = [evaluated(0.02, WINDOWS[20 * step : 20 * step + 20], step=step) for step in range(1, 9)]
    for one in each:
        await save(database, one)
    async with open_database(database_url, tmp_path) as another:
        hosts = [database, another]
        decisions = await asyncio.gather(*(rule_on(hosts[at % 2], one, LIMITS) for at, one in enumerate(each)))
    paid = sorted(decision.look.harm_chance for decision in decisions if decision.look is not None)
    left = YEARLY_BUDGET
    for chance in reversed(paid):
        assert chance == pytest.approx(left / SHARE_OF_REST)
        left -= chance
    assert len(paid) == 8
    assert await spent(database) == pytest.approx(YEARLY_BUDGET - left)


async def test_two_rulings_at_once_on_the_same_windows_are_one(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    each = [evaluated(0.4, step=step, number=step) for step in (1, 2)]
    for one in each:
        await save(database, one)
    async with open_database(database_url, tmp_path) as another:
        rulings = await asyncio.gather(rule_on(database, each[0], LIMITS), rule_on(another, each[1], LIMITS))
    assert [one.ruling for one in rulings] == [Ruling.PROMOTE, Ruling.UNDECIDED]


async def test_the_budget_is_that_of_the_last_year_and_of_one_model(database: Database) -> None:
    await ruled(database, evaluated(0.02))
    other = await ruled(database, replace(evaluated(0.02, number=1), model="rival", evaluation_id="rival"))
    assert other.look is not None
    assert other.look.harm_chance == pytest.approx(FIRST_LOOK)
    for days, expected in ((364, FIRST_LOOK), (366, 0.0)):
        await database.pool.execute(
            "UPDATE hindsight.evaluations SET ruled_at = now() - make_interval(days => $1)", days
        )
        assert await spent(database) == pytest.approx(expected)


async def test_promoting_by_hand_can_ask_for_more_than_the_gate_did_and_never_for_less(database: Database) -> None:
    good, unsure = evaluated(0.3), evaluated(0.02, WINDOWS[40:80], step=2)
    for one in (good, unsure):
        await ruled(database, one)
    again = evaluated(-0.5, number=1)
    await ruled(database, again)  # nothing new: the ruling stands, and so does what it was made on
    for evaluation, limits, expected in (
        (good, LIMITS, Ruling.PROMOTE),
        (again, LIMITS, Ruling.PROMOTE),
        (good, GateSettings(min_gain=0.5), Ruling.REFUSE),
        (unsure, GateSettings(min_gain=-1), Ruling.UNDECIDED),
    ):
        decision = await standing_ruling(database, evaluation, limits)
        assert decision is not None
        assert decision.ruling is expected


async def test_looking_again_at_windows_of_others_does_not_undo_a_ruling(database: Database) -> None:
    await ruled(database, evaluated(0.02, WINDOWS[40:80], step=2))
    passed = evaluated(0.3)
    assert (await ruled(database, passed)).ruling is Ruling.PROMOTE
    elsewhere = evaluated(-0.3, WINDOWS[40:80], number=1)
    assert (await ruled(database, elsewhere)).ruling is Ruling.PROMOTE
    standing = await standing_ruling(database, elsewhere, LIMITS)
    assert standing is not None
    assert standing.ruling is Ruling.PROMOTE


async def test_a_host_whose_clock_is_behind_does_not_get_windows_that_have_served(database: Database) -> None:
    assert (await ruled(database, evaluated(0.02))).ruling is Ruling.UNDECIDED
    behind = evaluated(0.9, step=2)
    behind = replace(behind, created_at=behind.created_at - timedelta(days=1))
    assert (await ruled(database, behind)).ruling is Ruling.UNDECIDED
    assert await spent(database) == pytest.approx(FIRST_LOOK)


async def test_ruling_twice_on_one_evaluation_does_not_give_back_what_was_spent(database: Database) -> None:
    evaluation = evaluated(0.02)
    await ruled(database, evaluation)
    again = await rule_on(database, evaluation, LIMITS)
    assert again.reasons[0].startswith("no window is new")
    assert await spent(database) == pytest.approx(FIRST_LOOK)


async def test_an_evaluation_between_trained_hours_decides_nothing(database: Database) -> None:
    """Version 0.1.0 evaluated on hours before and between trained ones, and its rulings are still in the ledger."""
    await insert_checkpoint(database, 1, windows=[WINDOWS[20]])
    old = evaluated(0.9, WINDOWS[:25])
    await save(database, old)
    await keep_ruling(database.pool, old, GateDecision(Ruling.PROMOTE, ("gain +0.9",)))
    standing = await standing_ruling(database, old, LIMITS)
    assert standing is not None
    assert standing.ruling is Ruling.UNDECIDED
    again = await ruled(database, evaluated(0.9, WINDOWS[:25], number=1))
    assert again.ruling is Ruling.UNDECIDED
    assert "only 4 evaluation windows" in again.sentence, "those after hour 20"


async def test_a_checkpoint_that_was_lost_and_trained_again_does_not_inherit_its_namesakes_rulings(
    database: Database,
) -> None:
    await insert_checkpoint(database, 1, windows=[])
    passed = evaluated(0.3)
    assert (await ruled(database, passed)).ruling is Ruling.PROMOTE
    await database.pool.execute("DELETE FROM hindsight.checkpoints")
    await database.pool.execute("DELETE FROM hindsight.batches")
    await insert_checkpoint(database, 1, windows=[])
    assert await latest_evaluation(database, "hindsight", 1) is None
    assert await standing_ruling(database, passed, LIMITS) is None
    decision = await ruled(database, evaluated(0.3, number=1))
    assert decision.ruling is Ruling.UNDECIDED
    assert "its windows served another evaluation" in decision.sentence
