"""Old checkpoints leave the disk; what agents use, used or may go back to stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from tests.builders import insert_window
from tests.builders_promotion import insert_checkpoint
from tests.fakes.training_backend import FakeBackend
from trainer.inference.checkpoints import CheckpointStore, StoredStep
from trainer.ledger.checkpoints import list_checkpoints
from trainer.promote.publish import publish, roll_back
from trainer.promote.retention import remove_old_checkpoints
from trainer.train.backends.adapter_files import remove_steps
from trainer.types import Checkpoint, Serving


def _at(checkpoint: Checkpoint) -> Serving:
    return Serving("http://127.0.0.1:8808/v1", checkpoint.name)


async def _trained(database: Database, home: Path, steps: int) -> tuple[FakeBackend, list[Checkpoint]]:
    """A backend with ``steps`` checkpoints on disk, all of them in the ledger."""
    backend = FakeBackend(home, name="cpu")
    points = []
    for step in range(1, steps + 1):
        location = backend.checkpoint(step).location
        Path(location).mkdir(parents=True)
        points.append(await insert_checkpoint(database, step, backend="cpu", location=location))
    return backend, points


def _on_disk(backend: FakeBackend) -> list[int]:
    return sorted(int(path.name) for path in backend.folder.iterdir())


async def test_the_newest_and_all_that_agents_used_or_try_stay(database: Database, tmp_path: Path) -> None:
    await insert_window(database.pool, agents=4)
    backend, points = await _trained(database, tmp_path, 8)
    await publish(database, tmp_path, points[0].as_release(), _at(points[0]), reason="first")
    await publish(database, tmp_path, points[2].as_release(), _at(points[2]), reason="better")
    await publish(database, tmp_path, points[4].as_release(), _at(points[4]), reason="on trial", canary=0.5)

    assert await remove_old_checkpoints(database, backend, "hindsight", keep=2) == [2, 4, 6]
    assert _on_disk(backend) == [1, 3, 5, 7, 8]
    assert await remove_old_checkpoints(database, backend, "hindsight", keep=2) == []

    states = {one.checkpoint.step: one.state for one in await list_checkpoints(database, "hindsight")}
    assert (states[8], states[5], states[4], states[1]) == ("new", "canary", "absent", "superseded")
    back = await roll_back(database, tmp_path, "hindsight", _at, step=None, reason="worse")
    assert back.checkpoint.step == 1
    with pytest.raises(ConfigurationError, match="are not in"):
        await roll_back(database, tmp_path, "hindsight", _at, step=2, reason="gone")


async def test_zero_keeps_everything(database: Database, tmp_path: Path) -> None:
    backend, _ = await _trained(database, tmp_path, 3)
    assert await remove_old_checkpoints(database, backend, "hindsight", keep=0) == []
    assert _on_disk(backend) == [1, 2, 3]


async def test_what_this_ledger_does_not_know_is_not_touched(database: Database, tmp_path: Path) -> None:
    backend, _ = await _trained(database, tmp_path, 3)
    await database.pool.execute("DELETE FROM hindsight.checkpoints WHERE step = 1")
    await database.pool.execute("UPDATE hindsight.checkpoints SET location = '/another/host' WHERE step = 2")
    assert await remove_old_checkpoints(database, backend, "hindsight", keep=1) == []
    assert _on_disk(backend) == [1, 2, 3]


def test_a_removed_checkpoint_leaves_nothing_behind(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "cpu")
    for step in (1, 2, 3):
        store.save(StoredStep(step, f"batch-{step}", 5, "tiny"), _fill)
    assert store.remove([1, 2, 7]) == [1, 2]
    assert [path.name for path in store.directory.iterdir()] == ["step-000003"]
    assert not store.is_sound(1)

    for name in ("0000", "0001", "0002", ".removed-0009"):
        _fill(tmp_path / "gpu" / name)
    assert remove_steps(tmp_path / "gpu", [1, 5]) == [1]
    assert sorted(path.name for path in (tmp_path / "gpu").iterdir()) == ["0000", "0002"]


def _fill(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "weights").write_bytes(b"w")
