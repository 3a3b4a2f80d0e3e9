"""What a run starts from after a ruling: real steps of the CPU backend on a tiny model, on a simulated market's log."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from data_bridge.database import Database, open_database
from data_bridge.errors import PromotionRefused
from data_bridge.window_ids import end_of, windows_from
from tests.builders_evaluation import make_evaluation
from tests.builders_promotion import insert_checkpoint
from tests.builders_run import Said
from tests.conftest import in_own_loop
from tests.tiny_model import shared_tiny_model
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.evidence import GateDecision, Ruling
from trainer.inference.checkpoints import store_of
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import keep_ruling, save, way_back
from trainer.ledger.lineage import walk_back, walk_forward
from trainer.ledger.releases import history, serving
from trainer.promote.publish import publish, roll_back
from trainer.run.after_training import AfterTraining
from trainer.run.train import train
from trainer.train.backends.cpu_step import gradient_step
from trainer.types import Serving
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows

HOURS = windows_from("2026-10-05T00:00", 200)
SMALL = dict[str, Any](backend="cpu", threads=1, lora_rank=2, groups_per_step=4, max_steps=2, stop_on=())
SMALL |= dict[str, Any](simulate="off", lookback="20d", eval_samples=1, eval_points=1, eval_questions=4)
SMALL |= dict[str, Any](max_error_rate=1.0, max_length_ratio=1e3, max_kl=1e3)  # it says nothing that is an action
_WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


class Killed(BaseException):
    """As sudden as a kill: nothing in the trainer catches it."""


class Game:
    """A log that grows, and runs of the command on it."""

    def __init__(self, database: Database, home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.home, self.tiny, self.patch = database, home, tiny, monkeypatch
        self.hours = 0
        self.started_from: list[str] = []
        """Hash of the adapter in memory at the start of each step."""
        self.watch_steps()

    def watch_steps(self, before: Callable[[], None] = lambda: None) -> None:
        def watched(policy: Any, *arguments: Any, **more: Any) -> Any:
            before()
            folder = self.home / "in-memory"
            folder.mkdir(exist_ok=True, parents=True)
            policy.save(folder)
            self.started_from.append(hashlib.sha256((folder / _WEIGHTS).read_bytes()).hexdigest())
            return gradient_step(policy, *arguments, **more)

        self.patch.setattr("trainer.train.backends.cpu.gradient_step", watched)

    def weights(self, step: int) -> str:
        return hashlib.sha256((store_of(self.home, "hindsight").path(step) / _WEIGHTS).read_bytes()).hexdigest()

    async def play(self, hours: int) -> None:
        windows = HOURS[self.hours : self.hours + hours]
        self.hours += hours
        await play_windows(
            self.database, self.home / "spool", Market(7), scripted_cast(3, 7), windows, write_together=64
        )

    async def run(self, **values: Any) -> tuple[Said, AfterTraining]:
        usual: dict[str, Any] = {
            "home": self.home,
            "base_model": str(self.tiny),
            "until": f"{end_of(HOURS[self.hours - 1], 2):%Y-%m-%dT%H:%M}",
        }
        said = Said()
        settings = settings_from(TrainSettings, **(SMALL | usual | values))
        _, result = await train(settings, self.database, str(self.tiny), said, simulated=False)
        return said, result

    async def steps(self) -> list[tuple[int, int | None]]:
        rows = await self.database.pool.fetch("SELECT step, parent_step FROM hindsight.checkpoints ORDER BY step")
        return [(row["step"], row["parent_step"]) for row in rows]

    async def rule(self, ruling: str) -> None:
        """What the gate said about the newest evaluation, if it had said something else."""
        await self.database.pool.execute(
            "UPDATE hindsight.evaluations SET ruling = $1, reasons = '{lost money}'"
            " WHERE created_at = (SELECT max(created_at) FROM hindsight.evaluations)",
            ruling,
        )

    async def publish(self, step: int) -> None:
        point = await find_checkpoint(self.database, "hindsight", step)
        where = Serving("http://127.0.0.1:1/v1", point.name)
        await publish(self.database, self.home, point.as_release(), where, reason="a rehearsal")


@dataclass(frozen=True)
class FirstRun:
    """Two steps on half of the windows, and an equal model, about which the gate is undecided; made once."""

    database: str
    home: Path
    """As it was, in the folder that the ledger names, and again beside it."""
    hours: int
    started_from: tuple[str, ...]


@pytest.fixture(scope="module")
def first_run(shared_database_url: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> FirstRun:
    folder = tmp_path_factory.mktemp("way-back")

    async def run(monkeypatch: pytest.MonkeyPatch) -> Game:
        async with open_database(shared_database_url, folder) as database:
            game = Game(database, folder / "home", tiny, monkeypatch)
            await game.play(30)
            _, result = await game.run()
            assert isinstance(result.refusal, PromotionRefused)
            assert "(undecided)" in str(result.refusal)
            assert await game.steps() == [(1, 0), (2, 1)]
        return game

    with pytest.MonkeyPatch.context() as monkeypatch:
        game = in_own_loop(lambda: run(monkeypatch))
    shutil.copytree(game.home, folder / "as it was")
    name = urlsplit(shared_database_url).path.removeprefix("/")
    return FirstRun(name, game.home, game.hours, tuple(game.started_from))


@pytest.fixture
async def game(
    first_run: FirstRun, make_database: Callable[..., str], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Game]:
    """What the first run left."""
    shutil.rmtree(first_run.home)
    shutil.copytree(first_run.home.parent / "as it was", first_run.home)
    async with open_database(make_database(first_run.database), first_run.home) as database:
        game = Game(database, first_run.home, tiny, monkeypatch)
        game.hours = first_run.hours
        game.started_from.extend(first_run.started_from)
        yield game


async def test_the_successor_of_a_refused_run_starts_from_what_the_agents_use_also_after_a_kill(game: Game) -> None:
    await game.publish(1)
    await game.rule("refuse")
    await game.play(30)

    def kill() -> None:
        raise Killed

    game.watch_steps(kill)
    with pytest.raises(Killed):
        await game.run()
    assert await game.steps() == [(1, 0), (2, 1)]
    game.watch_steps()
    game.started_from.clear()

    said, _ = await game.run()
    assert game.started_from == [game.weights(1), game.weights(3)], "then it goes on from its own steps"
    assert "Starting from hindsight@step1, which the agents use: step 2 was refused: lost money." in said.lines
    assert await game.steps() == [(1, 0), (2, 1), (3, 1), (4, 3)]

    lineage = await walk_back(game.database, "hindsight", 4, depth=0)
    assert [(one.checkpoint.step, one.parent_step) for one in lineage] == [(4, 3), (3, 1), (1, 0)]
    batches = "SELECT DISTINCT window_id FROM hindsight.batch_trajectories JOIN hindsight.batches b USING (batch_id)"
    [dead_end, *_] = await game.database.pool.fetch(f"{batches} WHERE b.step = 2")
    await game.publish(4)
    [left] = (await walk_forward(game.database, dead_end[0])).trained
    assert (left.checkpoint.step, left.later_steps, left.state) == (2, 0, None), "nobody builds on what was refused"
    await roll_back(
        game.database, game.home, "hindsight", lambda point: Serving("http://127.0.0.1:1/v1", point.name),
        step=None, reason="as expected",
    )  # fmt: skip
    now = await serving(game.database, "hindsight")
    assert now is not None
    assert now.checkpoint.step == 1
    assert [(past.checkpoint.step, past.state) for past in await history(game.database, "hindsight")] == [
        (1, "serving"), (4, "rolled_back"), (1, "superseded"),
    ]  # fmt: skip


@pytest.mark.parametrize(("max_undecided", "parent"), [(1, 0), (2, 2)])
async def test_after_enough_undecided_checkpoints_in_a_row_training_starts_from_what_the_agents_use(
    game: Game, max_undecided: int, parent: int
) -> None:
    untrained = game.started_from[0]
    await game.play(30)
    said, _ = await game.run(max_steps=1, max_undecided=max_undecided)
    assert await game.steps() == [(1, 0), (2, 1), (3, parent)]
    assert game.started_from[2] == (game.weights(2) if parent else untrained)
    went_back = [line for line in said.lines if line.startswith("Starting from")]
    assert len(went_back) == (parent == 0)


async def test_hold_trains_nothing_while_the_gate_is_undecided_and_its_evidence_grows(game: Game) -> None:
    before = await game.database.pool.fetchval("SELECT sum(windows) FROM hindsight.evaluations")
    assert before >= 15
    await game.play(10)
    said, result = await game.run(hold=True)
    assert await game.steps() == [(1, 0), (2, 1)]
    assert any(line.startswith("--hold: the gate is undecided about hindsight@step2") for line in said.lines)
    assert result.considered is not None
    assert {window.window_id for window in result.considered.evaluation.windows} == set(HOURS[30:40])
    decision = result.considered.decision
    assert decision.look is not None
    assert (decision.look.number, decision.look.level) == (2, 0.0125)
    assert f"{before + 10} windows" in decision.sentence, "those of before, and these"
    assert result.report.is_file()

    await game.rule("refuse")
    await game.play(30)
    await game.run(hold=True, max_steps=1)
    assert await game.steps() == [(1, 0), (2, 1), (3, 0)], "a candidate that is decided about is held no longer"


async def test_having_gone_back_undecided_checkpoints_are_counted_anew(database: Database) -> None:
    """Or from the third undecided period on every single one would be thrown away."""
    went_back: list[int | None] = []
    for step in range(1, 7):
        await insert_checkpoint(database, step)
        parent = step - 1 if not went_back or went_back[-1] is None else went_back[-1]
        await database.pool.execute("UPDATE hindsight.checkpoints SET parent_step = $1 WHERE step = $2", parent, step)
        evaluation = make_evaluation(step, evaluation_id=f"of step {step}")
        await save(database, evaluation)
        await keep_ruling(database.pool, evaluation, GateDecision(Ruling.UNDECIDED, ("nobody knows",)))
        back = await way_back(database, "hindsight", step, 3)
        went_back.append(None if back is None else back.step)
    assert went_back == [None, None, 0, None, None, 0]
