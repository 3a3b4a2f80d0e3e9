"""The curriculum on a real Postgres: stored before it is used, the same after a kill, never an empty arm."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import Interrupted
from tests.builders import NOW, hours_before, insert_outcomes, insert_trajectory, insert_window
from tests.builders_run import Said, World, in_training_order
from tests.fakes.training_backend import FakeBackend
from tests.integration.test_loop_hold_out import LOOP
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import Command
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.ledger.curriculum import arms_of_run, draws_of, last_round, patterned_share, played_results
from trainer.patterns.faults import Fault, FaultSource, Observed
from trainer.run.train import train
from trainer.run.training_run import TrainingRun
from trainer.statistics.curriculum import moved

DAYS = {**LOOP, "iterations": 3, "windows_per_iteration": 4, "groups_per_step": 8, "eval_questions": 0}
DAYS |= {"stage": "several", "curriculum": "auto", "promote": False, "held_out_share": 0}
ARMS = ["one, luck 0", "one, luck 0.2", "several, luck 0", "several, luck 0.2"]


async def loop(database: Database, home: Path, tiny: Path, **values: Any) -> tuple[Said, TrainingRun]:
    said = Said()
    settings = settings_from(TrainSettings, **(DAYS | values), home=home, base_model=str(tiny))
    run, _ = await train(settings, database, str(tiny), said, simulated=True)
    return said, run


async def worlds(database: Database) -> dict[str, str]:
    rows = await database.pool.fetch("SELECT window_id, stage, luck FROM hindsight.simulated_windows")
    return {row["window_id"]: f"{row['stage']}, luck {row['luck']:g}" for row in rows}


async def test_every_hour_is_played_in_the_market_that_was_drawn_and_the_aim_follows_from_how_it_went(
    database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said, run = await loop(database, tmp_path / "home", shared_tiny_model(tmp_path_factory))
    draws = await draws_of(database.pool, run.run_id)
    assert len(draws) == 12
    assert await worlds(database) == draws
    counts = Counter(draws.values())
    assert [name for name in ARMS if counts[name] >= 0.05 * 12] == ARMS
    assert sum(line.startswith("curriculum: one, luck 0 ") for line in said.lines) == 3
    rounds = await database.pool.fetch("SELECT round, aim FROM hindsight.curriculum_rounds ORDER BY round")
    assert [row["round"] for row in rounds] == [1, 2, 3]
    for earlier, later in pairwise(rounds):
        own = await database.pool.fetch(
            "SELECT window_id FROM hindsight.curriculum_draws WHERE round = $1", earlier["round"]
        )
        results = await played_results(database.pool, [row["window_id"] for row in own])
        assert len(results) == 4
        assert later["aim"] == pytest.approx(moved(earlier["aim"], list(results.values())))
    facts = await arms_of_run(database.pool, run.run_id)
    assert [one.name for one in facts] == ARMS
    assert sum(one.draws for one in facts) == 12
    assert all(one.tried > 0 for one in facts)


async def test_a_loop_that_is_killed_while_it_plays_goes_on_with_the_same_draws(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """kill -9 within the second day: its round is stored, some of its hours are played."""
    command = Command(database_url, tmp_path / "home", shared_tiny_model(tmp_path_factory))
    flags = ["--simulate", "on", "--stage", "several", "--curriculum", "auto", "--iterations", "2", "--agents", "4"]
    flags += ["--windows-per-iteration", "12", "--groups-per-step", "12", "--held-out-share", "0"]
    flags += ["--until", NOW.isoformat(), "--eval-questions", "0"]
    process = command.start(*flags)
    while process.is_alive() and not 12 < len(await worlds(database)) < 24:
        await asyncio.sleep(0.002)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, command.output.read_text()
    [run_id] = [row[0] for row in await database.pool.fetch("SELECT run_id FROM hindsight.runs")]
    drawn = await draws_of(database.pool, run_id)
    assert len(drawn) == 24
    assert 12 < len(await worlds(database)) < 24

    code, output = await command.run(*flags)
    assert code in (0, 5), output
    assert list((await draws_of(database.pool, run_id)).items()) == list(drawn.items())
    assert await worlds(database) == drawn
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.curriculum_rounds") == 2
    assert min(Counter(drawn.values()).values()) >= 0.05 * 24


async def test_the_next_run_of_a_model_goes_on_where_the_last_one_aimed(
    database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tiny = shared_tiny_model(tmp_path_factory)
    await loop(database, tmp_path / "home", tiny, iterations=1)
    first = await last_round(database, "hindsight", "market")
    assert first is not None
    await loop(database, tmp_path / "home", tiny, iterations=1)
    second = await last_round(database, "hindsight", "market")
    assert second is not None
    results = await played_results(database.pool, first.draws)
    assert second.number == 2
    assert second.aim == pytest.approx(moved(first.aim, list(results.values())))
    await loop(database, tmp_path / "home", tiny, iterations=1, curriculum="uniform", model="another")
    other = await last_round(database, "another", "market")
    assert other is not None
    assert (other.number, other.aim) == (1, 0.0), "another model has a curriculum of its own"


# On a log


GAINS = {"easy": (30.0, 20.0, 10.0), "middle": (20.0, -10.0, -20.0, 10.0), "hard": (-30.0, -20.0, -10.0)}


async def insert_log(database: Database) -> dict[str, str]:
    """Thirty windows of a log, each with its arm: by how many of its agents lost."""
    found = {}
    for place, window_id in enumerate(hours_before(number=30)):
        kind = list(GAINS)[place % 3]
        for number, pnl in enumerate(GAINS[kind]):
            await insert_trajectory(database.pool, f"agent-{number}", window_id=window_id, pnl=pnl)
        await insert_outcomes(database.pool, window_id)
        found[window_id] = kind
    return found


LOG: dict[str, Any] = {"curriculum": "auto", "groups_per_step": 3, "held_out_share": 0}


def order(backend: FakeBackend) -> list[str]:
    return [judged.group.window_id for batch in backend.trained for judged in batch.groups]


async def test_a_log_is_trained_in_the_order_of_the_draws_those_half_succeeded_at_first(
    database: Database, tmp_path: Path
) -> None:
    kinds, backend, world = await insert_log(database), FakeBackend(tmp_path), World(database, tmp_path)
    run = await world.train(backend, **LOG)
    draws = await draws_of(database.pool, run.run_id)
    assert draws == kinds, "by the game's own prices"
    assert order(backend) == list(draws)
    assert sorted(order(backend)) == sorted(kinds), "everything is trained, if there is time for it"
    head = Counter(kinds[window_id] for window_id in order(backend)[:12])
    assert head.most_common(1)[0][0] == "middle"
    assert min(head.values()) >= 1, "no arm is empty"


async def test_a_log_that_is_interrupted_is_trained_in_the_same_order_when_it_is_taken_up(
    database: Database, tmp_path: Path
) -> None:
    await insert_log(database)
    world, backend = World(database, tmp_path), FakeBackend(tmp_path)
    with pytest.raises(Interrupted):
        await world.train(backend, stop_after=3, **LOG)
    trained = len(order(backend))
    assert 0 < trained < 30
    run = await world.train(backend, **LOG)
    assert run.is_resumed
    assert order(backend) == list(await draws_of(database.pool, run.run_id))
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.curriculum_rounds") == 1


async def test_without_a_curriculum_nothing_is_drawn(database: Database, tmp_path: Path) -> None:
    kinds, backend = await insert_log(database), FakeBackend(tmp_path)
    await World(database, tmp_path).train(backend, groups_per_step=3, held_out_share=0)
    assert order(backend) == in_training_order(list(kinds))
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.curriculum_draws") == 0


async def test_arms_that_show_error_patterns_are_heavier_in_the_next_round(database: Database, tmp_path: Path) -> None:
    kinds, world = await insert_log(database), World(database, tmp_path)
    run = await world.train(FakeBackend(tmp_path), **LOG)
    fault = Fault(FaultSource.ERROR, "the order was rejected by the exchange")
    rows = await database.pool.fetch("SELECT trajectory_id, agent_id, window_id FROM hindsight.observed")
    failed = [Observed(**row, faults=(fault,)) for row in rows if kinds[row["window_id"]] == "hard"]
    await world.ledger.observe(run.run_id, failed)

    def arms(number: int) -> str:
        return f"SELECT arms::text FROM hindsight.curriculum_rounds WHERE round = {number}"

    for window_id in hours_before(number=36)[:6]:
        await insert_window(database.pool, window_id, agents=3)
    await world.train(FakeBackend(tmp_path), **LOG)
    first, second = [
        {arm["name"]: arm["weight"] for arm in json.loads(await database.pool.fetchval(arms(number)))}
        for number in (1, 2)
    ]
    assert first == {"easy": 1.0, "middle": 1.0, "hard": 1.0}
    shares = await patterned_share(database, "hindsight", list(kinds))
    assert {window_id for window_id, share in shares.items() if share} == {one.window_id for one in failed}
    assert second.get("hard", 2.0) == 2.0
    assert second.items() <= {"easy": 1.0, "middle": 1.0, "hard": 2.0, "unknown": 1.0, "flat": 0.0}.items()
