"""``--init-from``: a lineage that begins with another's adapter, and the beginnings that are refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from tests.builders import hours_before, insert_window
from tests.builders_training import good_and_bad_batch
from tests.integration.test_cpu_backend import likelihood, opened, train
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import ON_LOG, Command
from trainer.cli import lineage as lineage_command
from trainer.ledger.lineage import walk_back
from trainer.train.backends.transfer import check_init_from


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


async def source(home: Path, tiny: Path) -> float:
    """Two steps of a lineage; returns what it says of the good reply."""
    backend = await opened(home, tiny, model="source", learning_rate=5e-3)
    for step in range(2):
        await train(backend, good_and_bad_batch(f"batch-{step}", policy_step=step))
    said = await likelihood(backend, "BUY ACME 10")
    await backend.close()
    return said


async def test_the_adapter_is_the_first_step_and_training_goes_on_from_it(tmp_path: Path, tiny: Path) -> None:
    said = await source(tmp_path, tiny)
    for _ in range(2):  # the same command again continues
        backend = await opened(tmp_path, tiny, model="target", init_from="source@step2")
        assert await backend.current_step() == 1
        assert await likelihood(backend, "BUY ACME 10") == pytest.approx(said, abs=1e-4)
        await backend.close()
    backend = await opened(tmp_path, tiny, model="target", init_from="source@step2")
    result = await train(backend, good_and_bad_batch("batch-9", policy_step=1))
    assert (result.checkpoint.step, result.parent_step) == (2, 1)
    assert await likelihood(backend, "BUY ACME 10") > said
    await backend.close()
    untouched = await opened(tmp_path, tiny, model="source")
    assert await likelihood(untouched, "BUY ACME 10") == pytest.approx(said, abs=1e-4)
    await untouched.close()


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("source", {}, "MODEL@stepN"),
        ("source@step0", {}, "MODEL@stepN"),
        ("source@step9", {}, "no intact checkpoint"),
        ("source@step2", {"model": "source"}, "did not begin with it"),
    ],
)
async def test_a_beginning_that_cannot_be_is_refused(
    tmp_path: Path, tiny: Path, name: str, fields: dict[str, Any], why: str
) -> None:
    await source(tmp_path, tiny)
    with pytest.raises(ConfigurationError, match=why):
        await opened(tmp_path, tiny, **({"model": "target"} | fields), init_from=name)


async def test_an_adapter_of_another_base_model_is_refused(
    tmp_path: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await source(tmp_path, tiny)
    other = shared_tiny_model(tmp_path_factory, seed=1)
    with pytest.raises(ConfigurationError, match="was trained on"):
        await opened(tmp_path, other, model="target", init_from="source@step2")


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--dry-run", "--simulate", "on")])
@pytest.mark.parametrize(("name", "why"), [("nonsense", "write MODEL@stepN"), ("other@step3", "no intact checkpoint")])
async def test_a_beginning_that_cannot_be_is_refused_before_anything_is_read(
    tmp_path: Path, tiny: Path, name: str, why: str, flags: tuple[str, ...]
) -> None:
    nobody_listens = "postgresql://hindsight@127.0.0.1:1/game"  # opening it would be exit code 4, or another sentence
    command = Command(nobody_listens, tmp_path / "home", tiny)
    code, output = await command.run("--init-from", name, *flags)
    assert code == 2, output
    assert f"--init-from: {'there is ' if name != 'nonsense' else ''}{why}" in output
    assert output.count("\n") == 1, "one sentence"
    assert not (tmp_path / "home" / "checkpoints").exists()


async def test_a_model_that_began_with_it_may_name_it_again_and_no_other(tmp_path: Path, tiny: Path) -> None:
    await source(tmp_path, tiny)
    backend = await opened(tmp_path, tiny, model="target", init_from="source@step2")
    await backend.close()
    before = sorted(tmp_path.rglob("*"))
    check_init_from(None, tmp_path, "source", str(tiny))
    check_init_from("source@step2", tmp_path, "target", str(tiny))
    check_init_from("source@step1", tmp_path, "new", str(tiny))
    with pytest.raises(ConfigurationError, match="did not begin with it"):
        check_init_from("source@step1", tmp_path, "target", str(tiny))
    with pytest.raises(ConfigurationError, match="was trained on"):
        check_init_from("source@step1", tmp_path, "new", "another-base")
    assert sorted(tmp_path.rglob("*")) == before, "a look changes nothing"


async def test_the_lineage_of_a_model_that_began_with_anothers_adapter_goes_on_in_that_one(
    database: Database, database_url: str, tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    hours = hours_before(number=6)
    command = Command(database_url, tmp_path / "home", tiny)
    judged = (*ON_LOG, "--judge", "outcome", "--held-out-share", "0", "--max-steps", "1")
    for model, own, more in (("source", hours[:3], ()), ("target", hours[3:], ("--init-from", "source@step1"))):
        for window_id in own:
            await insert_window(database.pool, window_id, agents=3)
        code, output = await command.run(*judged, "--model", model, *more)
        assert code == 0, output
    found = await walk_back(database, "target", 2, depth=0)
    assert [(one.checkpoint.name, one.begun_from) for one in found] == [
        ("target@step2", None),
        ("target@step1", "source@step1"),
        ("source@step1", None),
    ]
    assert set(found[-1].window_ids) < set(hours[:3])
    flags = ["--database-url", database_url, "--home", str(tmp_path / "home")]

    async def told(*arguments: str) -> str:
        assert await asyncio.to_thread(lineage_command.main, [*arguments, *flags]) == 0
        return capfd.readouterr().out

    first = await told("target@step1")
    assert "from:        source@step1, whose adapter it is (--init-from)" in first
    assert "Parent: source@step1 (--depth 0 shows the whole history)." in first
    assert "source@step1, trained" in await told("target@step2", "--depth", "0")
    assert json.loads(await told("target@step1", "--json"))["lineage"][0]["begun_from"] == "source@step1"
    assert "no rewards" in await told("target@step1", "--rewards")
    await database.pool.execute("DELETE FROM hindsight.checkpoints WHERE model = 'source'")
    assert "Parent: source@step1 (this ledger has nothing of it)." in await told("target@step1", "--depth", "0")
