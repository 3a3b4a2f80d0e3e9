"""Playing and judging the next day while one is trained: real steps of the CPU backend on a tiny model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database, open_database
from tests.builders import hours_before, insert_window
from tests.builders_run import Said, World
from tests.fakes.training_backend import FakeBackend
from tests.integration.test_way_back import Killed
from tests.tiny_model import shared_tiny_model
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.judge.outcome import OutcomeJudge
from trainer.run import closed_loop, train
from trainer.run.training_run import TrainingRun
from trainer.train.backends.cpu import CpuBackend
from trainer.types import Group, PreparedBatch, StepResult, Submitted
from trainer.world.agents import EXPLORER

DAYS, HOURS, AGENTS = 3, 4, 4
LOOP = dict[str, Any](iterations=DAYS, windows_per_iteration=HOURS, agents=AGENTS, explore="answers", decisions=1)
LOOP |= dict[str, Any](backend="cpu", threads=1, lora_rank=2, groups_per_step=2, stop_on=(), undo_on=())
LOOP |= dict[str, Any](until="2026-10-10T00:00", held_out_share=0.0, distil="off")


class Loop:
    """Runs of the closed loop in one database and home."""

    def __init__(self, database: Database, home: Path, tiny: Path) -> None:
        self.database, self.home, self._tiny = database, home, tiny

    async def run(self, **values: Any) -> TrainingRun:
        settings = settings_from(TrainSettings, **LOOP, home=self.home, base_model=str(self._tiny), **values)
        run, _ = await train.train(settings, self.database, str(self._tiny), Said(), simulated=True)
        return run

    def hashes(self) -> list[str]:
        """Of the adapter and the optimizer of every checkpoint."""
        folders = sorted((self.home / "checkpoints" / "hindsight").glob("step-*"))
        files = ("adapter_model.safetensors", "optimizer.safetensors")
        return [
            hashlib.sha256(b"".join((folder / name).read_bytes() for name in files)).hexdigest() for folder in folders
        ]

    async def authors(self) -> list[set[str]]:
        """Who wrote the replies of each day, but for the explorers."""
        rows = await self.database.pool.fetch(
            """SELECT "windowId" AS hour, "stepsJson"::jsonb #>> '{0,llmCalls,0,model}' AS model FROM trajectories"""
        )
        hours = sorted({row["hour"] for row in rows})
        days = [set(hours[start : start + HOURS]) for start in range(0, len(hours), HOURS)]
        return [{row["model"] for row in rows if row["hour"] in day} - {EXPLORER} for day in days]

    async def uses(self) -> dict[str, int]:
        rows = await self.database.pool.fetch(
            "SELECT trajectory_id, count(*) AS n FROM hindsight.batch_trajectories"
            " JOIN hindsight.batches USING (batch_id) WHERE state = 'trained' GROUP BY 1"
        )
        return {row["trajectory_id"]: row["n"] for row in rows}


class Verdicts:
    """Counts the groups that the offline judge has judged."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._judged: set[str] = set()
        self._news = asyncio.Condition()
        judge = OutcomeJudge.judge

        async def noted(judging: OutcomeJudge, group: Group) -> Any:
            verdict = await judge(judging, group)
            async with self._news:
                self._judged.add(group.group_id)
                self._news.notify_all()
            return verdict

        patch.setattr(OutcomeJudge, "judge", noted)

    async def wait_for(self, number: int) -> None:
        """The deadline is for a test that fails."""
        async with asyncio.timeout(300), self._news:
            await self._news.wait_for(lambda: len(self._judged) >= number)


@pytest.fixture
async def make_loop(
    make_database: Callable[..., str],
    template_database: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    tiny = shared_tiny_model(tmp_path_factory)

    async def nothing(*_: Any) -> None: ...

    monkeypatch.setattr(train, "after_training", nothing)
    opened = []

    async def make(name: str) -> Loop:
        context = open_database(make_database(template_database), tmp_path)
        opened.append(context)
        return Loop(await context.__aenter__(), tmp_path / name, tiny)

    yield make
    for context in reversed(opened):
        await context.__aexit__(None, None, None)


async def test_no_lag_is_the_loop_one_after_the_other_to_the_bit(
    make_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the loop as it is written down here: play a day, train it, play the next."""
    loop, plain = await make_loop("loop"), await make_loop("plain")
    await loop.run(max_lag=0)

    async def one_after_the_other(session: Any, run: Any, state: Any) -> None:
        async with closed_loop._engine(session) as engine:
            for number in range(DAYS):
                day = closed_loop._day(state.first_window, number, HOURS)
                await closed_loop._play(session, engine, day, run.run_id)
                await closed_loop._train(run, day)

    monkeypatch.setattr(closed_loop, "_play_and_train", one_after_the_other)
    await plain.run()
    assert len(loop.hashes()) == 2 * DAYS
    assert loop.hashes() == plain.hashes()
    assert await loop.authors() == [{f"hindsight@step{step}"} for step in (0, 2, 4)]


async def test_the_next_day_is_played_and_judged_while_one_is_trained(
    make_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of a day is made before all groups of the next are judged: one after the other would wait for ever."""
    loop, again = await make_loop("loop"), await make_loop("again")
    train_step = CpuBackend.train

    async def late(self: CpuBackend, prepared: PreparedBatch, **how: Any) -> Any:
        day = (await self.current_step()) // 2
        await verdicts.wait_for(HOURS * min(DAYS, day + 2))
        return await train_step(self, prepared, **how)

    with monkeypatch.context() as patch:
        verdicts = Verdicts(patch)
        patch.setattr(CpuBackend, "train", late)
        run = await loop.run(max_lag=1)
    assert await loop.authors() == [{f"hindsight@step{step}"} for step in (0, 0, 2)]
    assert run.loop is not None
    assert [day.played_with for day in run.loop.days] == [f"hindsight@step{step}" for step in (0, 0, 2)]
    uses = await loop.uses()
    assert (len(uses), set(uses.values())) == (DAYS * HOURS * AGENTS, {1})
    assert run.progress.groups_judged == DAYS * HOURS
    assert run.progress.groups_cached == 0  # asked once

    await again.run(max_lag=1)
    assert again.hashes() == loop.hashes()  # however play and training overlapped


@pytest.mark.parametrize("where", ["train", "play", "judge"])
async def test_a_loop_that_is_killed_with_a_day_ahead_goes_on_where_it_was(
    make_loop: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    loop = await make_loop("loop")
    parts = {
        "train": (CpuBackend, "train", 1),
        "play": (closed_loop, "play_windows", 2),
        "judge": (OutcomeJudge, "judge", HOURS + 1),
    }
    owner, name, allowed = parts[where]
    real, calls = getattr(owner, name), iter(range(100))

    async def killed(*arguments: Any, **how: Any) -> Any:
        if next(calls) >= allowed:
            raise Killed
        return await real(*arguments, **how)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        patch.setattr(closed_loop, "_ASKED_AT_ONCE", AGENTS)  # an hour at a time
        with pytest.raises(Killed):
            await loop.run(max_lag=1)
    await loop.run(max_lag=1)
    uses = await loop.uses()
    assert (len(uses), set(uses.values())) == (DAYS * HOURS * AGENTS, {1})
    assert len(loop.hashes()) == 2 * DAYS


def test_a_day_that_may_stay_untrained_is_not_played_ahead() -> None:
    with pytest.raises(ValueError, match="--max-lag 1 plays a day before it is known"):
        settings_from(TrainSettings, max_lag=1, max_steps=3)


class Waiting(FakeBackend):
    """A backend of which no step of two groups ends before those of the next step are judged; there are six."""

    verdicts: Verdicts

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        await self.verdicts.wait_for(min(6, 2 * (len(self.trained) + 2)))
        return await super().train(prepared, on_submitted=on_submitted)


async def test_of_a_log_the_next_step_is_read_and_judged_while_one_is_trained(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, backend = World(database, tmp_path), Waiting(tmp_path)
    backend.verdicts = Verdicts(monkeypatch)
    for window_id in hours_before(number=6):
        await insert_window(database.pool, window_id, agents=4)
    await world.train(backend, groups_per_step=2)
    assert len(backend.trained) == 3
