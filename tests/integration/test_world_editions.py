"""A window belongs to the edition of the simulated market that played it: no other edition replays or finishes it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.window_ids import windows_from
from trainer.evaluate.simulated_replay import load_replay
from trainer.world.agents import scripted_cast
from trainer.world.market import EDITION, Market
from trainer.world.play import play_windows
from trainer.world.replay import load_windows

WINDOWS = windows_from("2026-03-02T00:00", 4)


async def play(database: Database, spool: Path) -> None:
    await play_windows(database, spool, Market(7), scripted_cast(3, 7), WINDOWS)


@pytest.fixture
async def of_two_editions(database: Database, tmp_path: Path) -> Database:
    """The first two windows were played by the first edition."""
    await play(database, tmp_path)
    await database.pool.execute(
        "UPDATE hindsight.simulated_windows SET prompt_version = '1' WHERE window_id = ANY($1)", list(WINDOWS[:2])
    )
    return database


async def test_a_window_of_another_edition_is_not_replayed_and_the_reason_is_said(
    of_two_editions: Database, caplog: pytest.LogCaptureFixture
) -> None:
    assert EDITION != "1"
    with caplog.at_level(logging.WARNING):
        found = await load_windows(of_two_editions, WINDOWS)
    assert list(found) == list(WINDOWS[2:])
    assert f"2 windows from {WINDOWS[0]} to {WINDOWS[1]} were played in another edition" in caplog.text
    assert await load_replay(of_two_editions, WINDOWS[:2]) is None


async def test_a_window_that_another_edition_has_played_is_left_alone(
    of_two_editions: Database, tmp_path: Path
) -> None:
    count = "SELECT count(*) FROM trajectories"
    before = await of_two_editions.pool.fetchval(count)
    await play(of_two_editions, tmp_path)
    assert await of_two_editions.pool.fetchval(count) == before
    editions = await of_two_editions.pool.fetch(
        "SELECT prompt_version FROM hindsight.simulated_windows ORDER BY window_id"
    )
    assert [row[0] for row in editions] == ["1", "1", EDITION, EDITION]


async def test_a_window_that_another_edition_began_is_refused_in_one_sentence(
    of_two_editions: Database, tmp_path: Path
) -> None:
    """Its rows would be half of one market and half of another."""
    await of_two_editions.pool.execute(
        "UPDATE hindsight.simulated_windows SET tape = 'null' WHERE window_id = $1", WINDOWS[1]
    )
    with pytest.raises(ConfigurationError, match=rf"{WINDOWS[1]} was begun by edition 1 .* choose other hours"):
        await play(of_two_editions, tmp_path)
