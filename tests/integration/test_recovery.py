"""A collapse is undone by what the ledger says: back to the last healthy step, with half the learning rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError
from tests.builders_promotion import insert_checkpoint
from tests.builders_run import Said
from tests.integration.test_way_back import Game
from tests.tiny_model import shared_tiny_model
from trainer.ledger.runs import Ledger
from trainer.train.collapse import AnswerTally
from trainer.train.recovery import recover
from trainer.train.thresholds import parse_thresholds
from trainer.types import Checkpoint

LIMITS = parse_thresholds(("answer_share>0.95",))


class Remembering:
    """The part of a backend that goes back."""

    name = "cpu"

    def __init__(self, newest: int = 3) -> None:
        self.newest = newest
        self.started_from: int | None = None
        self.share = 1.0

    async def start_step(self) -> int:
        return self.newest if self.started_from is None else self.started_from

    async def start_from(self, step: int) -> None:
        self.started_from = step

    def slow_down(self, share: float) -> None:
        self.share = share

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint("hindsight", step, "base", "cpu", f"/checkpoints/{step}")


class OnlyForward:
    name = "serverless"


async def trained(database: Database, step: int, share: float, played_by: int, parent: int | None = None) -> None:
    await insert_checkpoint(database, step, windows=[])
    await database.pool.execute(
        "UPDATE hindsight.batches SET metrics = $2::jsonb WHERE batch_id = $1",
        *(f"hindsight-batch-{step}", json.dumps({"answer_share": share, "played_by_step": played_by})),
    )
    await database.pool.execute("UPDATE hindsight.checkpoints SET parent_step = $2 WHERE step = $1", step, parent)


async def run_of(database: Database) -> str:
    return str(await database.pool.fetchval("SELECT run_id FROM hindsight.batches LIMIT 1"))


async def test_the_step_before_the_collapse_is_where_training_goes_on(database: Database, tmp_path: Path) -> None:
    for step, share in ((1, 0.6), (2, 0.7), (3, 0.98)):
        await trained(database, step, share, step - 1)
    backend, said = Remembering(), Said()
    ledger = Ledger(database, tmp_path)
    assert await recover(backend, ledger, "hindsight", await run_of(database), LIMITS, said)  # type: ignore[arg-type]
    assert (backend.started_from, backend.share) == (1, 0.5)
    [line] = said.lines
    assert "hindsight@step1" in line
    assert "half the learning rate" in line


async def test_a_run_that_was_killed_after_going_back_keeps_its_smaller_steps(
    database: Database, tmp_path: Path
) -> None:
    for step, share in ((1, 0.6), (2, 0.7), (3, 0.98)):
        await trained(database, step, share, step - 1)
    await trained(database, 4, 0.99, 2, parent=1)  # the rest of the hours that the collapsed step played
    backend, said = Remembering(newest=4), Said()
    ledger = Ledger(database, tmp_path)
    assert not await recover(backend, ledger, "hindsight", await run_of(database), LIMITS, said)  # type: ignore[arg-type]
    assert (backend.started_from, backend.share) == (None, 0.5)
    assert not said.lines


async def test_a_model_that_collapses_again_and_again_is_stopped(database: Database, tmp_path: Path) -> None:
    await trained(database, 1, 0.6, 0)
    for step in (2, 4, 6, 8, 10):
        await trained(database, step, 0.7, 1, parent=1)
        await trained(database, step + 1, 0.98, step)
    with pytest.raises(BackendError, match="again and again") as raised:
        await recover(
            Remembering(newest=11),  # type: ignore[arg-type]
            *(Ledger(database, tmp_path), "hindsight", await run_of(database), LIMITS, Said()),
        )
    assert "--learning-rate" in str(raised.value)


async def test_a_backend_that_cannot_go_back_warns(database: Database, tmp_path: Path) -> None:
    for step, share in ((1, 0.6), (2, 0.98)):
        await trained(database, step, share, step - 1)
    said = Said()
    ledger = Ledger(database, tmp_path)
    assert not await recover(OnlyForward(), ledger, "hindsight", None, LIMITS, said)  # type: ignore[arg-type]
    assert said.lines[0].startswith("warning: the model collapses")


@pytest.mark.parametrize(("ruling", "goes_on_from"), [("undecided", 1), ("refuse", 0)])
async def test_the_healthy_step_and_not_the_collapsed_one_is_evaluated_and_ruled_on(
    ruling: str,
    goes_on_from: int,
    database: Database,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collapse shows in the last step of the run, so that no step follows its undoing."""
    seen = iter([(0.6, 0), (0.6, 1), (0.98, 2), (0.6, 1)])

    def answers(*_: object) -> dict[str, float]:
        share, played_by = next(seen)
        return {"answer_share": share, "played_by_step": played_by}

    monkeypatch.setattr(AnswerTally, "add", answers)
    game = Game(database, tmp_path / "home", shared_tiny_model(tmp_path_factory), monkeypatch)
    await game.play(30)
    said, result = await game.run(max_steps=3, groups_per_step=2)
    assert await game.steps() == [(1, 0), (2, 1), (3, 2)]
    assert any("Going on from hindsight@step1" in line for line in said.lines)
    assert "evaluating hindsight@step1 on later windows" in said.lines
    assert result.considered is not None
    assert result.considered.evaluation.candidate.step == 1

    await game.rule(ruling)
    await game.play(30)
    untrained = game.started_from[0]
    said, _ = await game.run(max_steps=1)
    assert sum("Going on from" in line for line in said.lines) == 1
    assert (await game.steps())[-1] == (4, goes_on_from)
    assert game.started_from[-1] == (game.weights(1) if goes_on_from else untrained)
