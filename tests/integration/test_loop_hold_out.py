"""The hours that decide about a closed loop: real steps of the CPU backend on a tiny model, in a market it plays."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.window_ids import end_of, start_of
from tests.builders_run import Said
from tests.integration.test_way_back import Killed
from tests.tiny_model import shared_tiny_model
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.ledger.runs import Ledger, LoopState
from trainer.run.after_training import AfterTraining
from trainer.run.train import train
from trainer.run.training_run import TrainingRun

LOOP = dict[str, Any](iterations=2, windows_per_iteration=6, agents=4, explore="answers", decisions=1, eval_windows=3)
LOOP |= dict[str, Any](backend="cpu", threads=1, lora_rank=2, groups_per_step=2, stop_on=(), eval_samples=1)
LOOP |= dict[str, Any](until="2026-10-10T00:00", max_error_rate=1.0, max_length_ratio=1e3, max_kl=1e3)


async def evaluated(database: Database) -> list[list[str]]:
    rows = await database.pool.fetch("SELECT report::text FROM hindsight.evaluations ORDER BY created_at")
    return [[window["window_id"] for window in json.loads(row[0])["windows"]] for row in rows]


async def test_a_loop_that_was_killed_after_its_last_step_plays_what_decides_after_all_it_trained(
    database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps are done and the first day is not: no day is in the books. Then --hold plays further hours."""
    tiny = shared_tiny_model(tmp_path_factory)

    async def run(**values: Any) -> tuple[Said, TrainingRun, AfterTraining]:
        said = Said()
        settings = settings_from(TrainSettings, **LOOP, home=tmp_path / "home", base_model=str(tiny), **values)
        return said, *await train(settings, database, str(tiny), said, simulated=True)

    async def killed_at_the_end_of_the_day(ledger: Ledger, run_id: str, loop: LoopState) -> None:
        if loop.days:
            raise Killed
        await note(ledger, run_id, loop)

    note = Ledger.note
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "note", killed_at_the_end_of_the_day)
        with pytest.raises(Killed):
            await run(max_steps=1)
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.checkpoints") == 1

    _, resumed, result = await run(max_steps=1)
    assert resumed.is_resumed
    assert "only 3 evaluation windows; the minimum to decide is 15" in str(result.refusal)
    trained = await database.pool.fetchval("SELECT max(window_id) FROM hindsight.batch_trajectories")
    [decided] = await evaluated(database)
    assert start_of(decided[0]) == end_of(trained, 1) + timedelta(hours=3)

    said, held, result = await run(hold=True)
    assert any(line.startswith("--hold: the gate is undecided about hindsight@step1") for line in said.lines)
    assert (held.is_resumed, held.progress.steps) == (False, 0)
    assert "only 6 evaluation windows" in str(result.refusal), "its evidence grows"
    [_, further] = await evaluated(database)
    assert min(further) > max(decided)
