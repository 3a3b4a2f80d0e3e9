"""Exploration goes where the log is thin, and never where an agent has too much to lose."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from data_bridge.window_ids import windows_from
from tests.unit.test_world_play import SlowModel
from trainer.world.agents import EXPLORER, Agent, ChatPolicy, Exploration, model_cast
from trainer.world.exchange import Book, Exchange, Holding
from trainer.world.guard import DEFAULT_LIMITS
from trainer.world.market import Market
from trainer.world.observation import observe
from trainer.world.player import PlayedHour, Player
from trainer.world.states import LEAST, MOST, forbids_exploring, state_of, thinness

WINDOWS = windows_from("2026-03-02T00:00", 40)


def states(market: Market) -> list[str]:
    hours = [market.hour(window_id) for window_id in WINDOWS]
    return [state_of(observe(hour, 0, Exchange(hour).quotes(0))) for hour in hours]


def test_a_state_says_what_can_be_seen_and_not_what_will_happen() -> None:
    assert states(Market(3, luck=0.0)) != states(Market(4, luck=0.0))
    assert {one.split(",")[0] for one in states(Market(3, stage="several"))} == {"3 tickers"}
    assert len(set(states(Market(3)))) > 4
    for hour in (Market(3, decisions=3).hour(window_id) for window_id in WINDOWS[:5]):
        seen = [state_of(observe(hour, step, Exchange(hour).quotes(step))) for step in range(3)]
        assert [f"decision {step + 1}" in one for step, one in enumerate(seen)] == [True] * 3


def test_more_is_explored_in_a_rare_state_and_as_much_as_usual_over_all() -> None:
    counts = {"common": 400, "usual": 300, "rare": 200}
    found = {state: thinness(state, counts) for state in counts}
    assert found["common"] < 1 < found["rare"]
    assert sum(counts[state] * found[state] for state in counts) / 900 == pytest.approx(1)
    assert thinness("never met", counts) == MOST
    assert thinness("everywhere", {"everywhere": 10**6, "once": 1}) >= LEAST
    assert thinness("anything", {}) == 1, "an empty log is equally thin everywhere"


async def played(cast: tuple[Agent, ...], exploration: Exploration, lookahead: int = 0) -> list[PlayedHour]:
    player = Player(Market(1), cast, exploration)
    return [one async for one in player.play(WINDOWS, lookahead=lookahead)]


def explored(hours: list[PlayedHour]) -> list[list[bool]]:
    return [[life.steps[0].answer.model == EXPLORER for life in hour.agents] for hour in hours]


async def test_agents_explore_more_often_where_the_log_is_thin() -> None:
    cast = model_cast(8, 1, ChatPolicy(SlowModel()))

    async def share(known: Mapping[str, int]) -> float:
        found = explored(await played(cast, Exploration(0.4, 0.4, how="answers", known_states=known)))
        return sum(map(sum, found)) / (8 * len(found))

    met = dict.fromkeys(states(Market(1)), 50)
    assert await share(met) == pytest.approx(0.4, abs=0.03)
    assert await share(dict.fromkeys(["elsewhere"], 50)) == pytest.approx(0.4 * MOST, abs=0.04)


def test_a_state_is_too_risky_when_the_balance_or_half_the_loss_is_gone_and_urgent_with_a_losing_position() -> None:
    def forbids(book: Book, gain: float = 0.0, *, is_last: bool = False) -> bool:
        return forbids_exploring(book, gain, 10_000.0, DEFAULT_LIMITS, is_last=is_last)

    held = Book(10_000.0, 0.0, {"$COIN": Holding(10.0, 100.0)})
    assert not forbids(Book(10_000.0, 0.0), is_last=True)
    assert forbids(Book(2_400.0, 0.0)), "the balance is nearly gone"
    assert forbids(Book(0.0, 0.0))
    assert not forbids(Book(10_000.0, 0.0), -400.0)
    assert forbids(Book(10_000.0, 0.0), -500.0), "half of the loss that the guard allows"
    assert forbids(held, -10.0, is_last=True), "the last chance to close what is losing"
    assert not forbids(held, -10.0)
    assert not forbids(held, 10.0, is_last=True)


@pytest.mark.parametrize("lookahead", [0, 5])
async def test_an_agent_whose_balance_is_nearly_gone_never_explores(lookahead: int) -> None:
    cast = model_cast(4, 1, ChatPolicy(SlowModel()))
    player = Player(Market(1), cast, Exploration(0.5, 0.5, how="answers", is_careful=True))
    player.resume({cast[0].agent_id: Book(0.2 * cast[0].starting_balance, 0.0)})
    found = explored([one async for one in player.play(WINDOWS, lookahead=lookahead)])
    assert [row[0] for row in found] == [False] * len(WINDOWS)
    assert {sum(row) for row in found} == {2}, "the others explore in its place"


async def test_looking_ahead_changes_nothing_for_careful_agents() -> None:
    careful = Exploration(0.5, 0.5, how="answers", is_careful=True)
    cast = model_cast(4, 1, ChatPolicy(SlowModel()))
    assert explored(await played(cast, careful)) == explored(await played(cast, careful, lookahead=6))
