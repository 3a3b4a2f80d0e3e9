"""Errands: what can be done follows the state, what comes of it follows the roads and the partners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from data_bridge.window_ids import start_of, windows_from
from trainer.world.actions import ActionError
from trainer.world.agents import NO_EXPLORATION, ScriptedPolicy, model_cast
from trainer.world.player import Player
from trainer.world.quests.carrying import (
    GO,
    GUARD,
    JOIN,
    WAIT,
    Purse,
    QuestChoice,
    Roads,
    coins_of,
    parse,
    why_not,
)
from trainer.world.quests.errands import Errand, QuestHour, Quests
from trainer.world.quests.view import QuestView, view_of
from trainer.world.regimes import PERSISTENCE
from trainer.world.worlds import QUESTS

WEEK = windows_from("2026-03-02T00:00", 168)
WORLD = Quests(7, stage="several", decisions=2)
LIGHT = Errand("Harbor", "lamp", 30, "The way to Harbor is safe")
HEAVY = replace(LIGHT, is_heavy=True)
SAFE, ROBBED = Roads((), {}), Roads(("Harbor",), {})


def views() -> Iterator[tuple[QuestHour, QuestView]]:
    for window_id in WEEK:
        hour = WORLD.hour(window_id)
        yield hour, view_of(hour, 0, hour.start, hour.supplies)


def verbs(seen: QuestView, errand: Errand) -> set[str]:
    return {offer.verb for offer in seen.offers if offer.errand == errand.name}


def test_an_hour_is_a_pure_function_of_its_world_and_its_id() -> None:
    for window_id in WEEK[:20]:
        one, same, other = (Quests(seed).hour(window_id) for seed in (7, 7, 8))
        assert one.board(0, "Harbor") == same.board(0, "Harbor")
        assert one.board(0, "Harbor") != other.board(0, "Harbor")


def test_guards_are_hired_by_day_not_on_sundays_and_by_those_who_have_the_coins() -> None:
    met = set()
    for hour, seen in views():
        start = start_of(hour.window_id)
        can_hire = 6 <= start.hour < 22 and start.strftime("%A") != "Sunday"
        for errand in seen.errands:
            affordable = seen.coins >= 2 * errand.fee
            assert (GUARD in verbs(seen, errand)) == (can_hire and affordable and not errand.is_heavy)
            met.add((can_hire, affordable))
    assert len(met) == 4


def test_heavy_loads_are_carried_together_and_urgent_errands_do_not_wait() -> None:
    met = set()
    for _, seen in views():
        for errand in seen.errands:
            assert (JOIN in verbs(seen, errand), GO in verbs(seen, errand)) == (errand.is_heavy, not errand.is_heavy)
        is_urgent = any(errand.is_urgent for errand in seen.errands)
        assert (QuestChoice(WAIT) in seen.offers) != is_urgent
        met.add((is_urgent, any(errand.is_heavy for errand in seen.errands)))
    assert len(met) == 4


def test_in_the_first_stage_the_only_question_is_whether_the_road_is_safe() -> None:
    for window_id in WEEK:
        hour = Quests(7).hour(window_id)
        seen = view_of(hour, 0, hour.start, hour.supplies)
        [errand] = seen.errands
        assert seen.offers == (QuestChoice(GO, errand.name), QuestChoice(GUARD, errand.name))


@pytest.mark.parametrize(
    ("verb", "roads", "coins"), [(GO, SAFE, 30), (GO, ROBBED, -30), (GUARD, SAFE, -30), (GUARD, ROBBED, 30)]
)
def test_the_right_way_earns_what_the_wrong_one_costs(verb: str, roads: Roads, coins: int) -> None:
    assert coins_of(QuestChoice(verb, LIGHT.name), LIGHT, roads) == coins


@pytest.mark.parametrize(("others", "on_safe_road", "with_robbers"), [(0, -30, -30), (1, 30, -30), (2, 30, 30)])
def test_two_carry_a_heavy_load_and_three_drive_off_robbers(others: int, on_safe_road: int, with_robbers: int) -> None:
    join, joined = QuestChoice(JOIN, HEAVY.name), {HEAVY.name: others + 1}
    assert coins_of(join, HEAVY, Roads((), joined), own=join) == on_safe_road
    assert coins_of(join, HEAVY, Roads(("Harbor",), joined), own=join) == with_robbers
    as_another = coins_of(join, HEAVY, Roads((), {HEAVY.name: others}), own=QuestChoice(WAIT))
    assert as_another == on_safe_road, "who did not join adds to those who did"


def test_an_errand_ends_at_its_place_unless_robbers_took_it() -> None:
    purse = Purse(0.0, 0.0, "Tower", 100)
    seen = QuestView("2026-03-02T08:00", 0, 4.0, "Tower", 100, "Monday day", (LIGHT,), (QuestChoice(GO, LIGHT.name),))
    after = QUESTS.after(purse, QuestChoice(GO, LIGHT.name), seen, 30.0)
    assert (after.place, after.coins) == ("Harbor", 130)
    robbed = QUESTS.after(purse, QuestChoice(GO, LIGHT.name), seen, -30.0)
    assert (robbed.place, robbed.coins) == ("Tower", 70)
    assert QUESTS.after(purse, QuestChoice(WAIT), seen, None) == purse
    assert replace(robbed, lifetime_pnl=5.0).settled().lifetime_pnl == -25.0


async def test_what_an_agent_is_offered_next_follows_from_what_it_did() -> None:
    cast = model_cast(6, 1, ScriptedPolicy(0.5), QUESTS)
    places, different = set(), 0
    async for played in Player(WORLD, cast, NO_EXPLORATION).play(WEEK[:40]):
        assert len({str(life.steps[0].messages) for life in played.agents}) == 1, "all begin alike"
        for life in played.agents:
            first, second = life.steps
            assert second.seen.coins == max(0, played.hour.supplies + (first.price or 0))
            assert second.seen.errands == played.hour.board(1, second.book.place)
            places.add((first.seen.place, second.seen.place))
        different += len({str(life.steps[1].messages) for life in played.agents}) > 1
    assert any(before != after for before, after in places)
    assert different > 20


@pytest.mark.parametrize("luck", [0.2, 1.0])
def test_robbers_come_as_told_but_for_luck(luck: float) -> None:
    world, told_right, told = Quests(3, luck=luck), 0, 0
    for window_id in windows_from("2026-01-01T00:00", 600):
        hour = world.hour(window_id)
        for place in ("Harbor", "Abbey"):
            if said := hour.road(place):
                told += 1
                told_right += (said < 0) == hour.has_robbers(place)
    assert told_right / told == pytest.approx(1 - luck / 2, abs=0.06)


def test_roads_stay_as_they_are_for_hours() -> None:
    hours = [Quests(3).hour(window_id) for window_id in windows_from("2026-01-01T00:00", 2_000)]
    stays = sum(one.road("Harbor") == two.road("Harbor") for one, two in pairwise(hours))
    drawn_alike = 0.15**2 + 2 * 0.425**2
    assert stays / (len(hours) - 1) == pytest.approx(PERSISTENCE + (1 - PERSISTENCE) * drawn_alike, abs=0.05)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "empty_reply"),
        ("GO lamp to Harbor\nGO", "not_one_line"),
        ("go lamp to Harbor", "unreadable"),
        ("GO lamp to Harbor for 30", "unreadable"),
        ("GO lamp", "unreadable"),
        ("BUY $COIN 20%", "unreadable"),
    ],
)
def test_a_reply_that_is_not_an_action_says_why(reply: str, reason: str) -> None:
    parsed = parse(reply)
    assert isinstance(parsed, ActionError)
    assert (parsed.reason, parsed.blocked) == (reason, False)


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (QuestChoice(GO, "rope to Tower"), "unknown_errand"),
        (QuestChoice(GUARD, LIGHT.name), "no_coins"),
        (QuestChoice(JOIN, LIGHT.name), "not_offered"),
        (QuestChoice(WAIT), "not_offered"),
    ],
)
def test_what_the_state_does_not_allow_is_stopped(choice: QuestChoice, reason: str) -> None:
    stopped = why_not(choice, [QuestChoice(GO, LIGHT.name)], [LIGHT], coins=59)
    assert stopped is not None
    assert (stopped.reason, stopped.blocked) == (reason, True)
    assert why_not(QuestChoice(GO, LIGHT.name), [QuestChoice(GO, LIGHT.name)], [LIGHT], coins=59) is None
