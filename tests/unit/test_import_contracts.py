"""The contracts of import-linter hold, and would not if a stage knew another: tried on a copy of the tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(folder: Path, **planted: str) -> subprocess.CompletedProcess[str]:
    """``lint-imports`` on a copy of the tree in ``folder``, with the code ``planted`` at the end of files."""
    for package in ("trainer", "data_bridge"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name, code in planted.items():
        with (folder / name).open("a") as file:
            file.write(f"\n{code}\n")
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_contracts_hold_on_the_tree_as_it_is(tmp_path: Path) -> None:
    done = lint(tmp_path)
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


IN_A_FUNCTION = "def _planted() -> None:\n    from trainer.promote import gate"
FOR_TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import trainer.evaluate.comparison"


@pytest.mark.parametrize(
    ("name", "code", "imported"),
    [
        ("trainer/plan/plan.py", "import trainer.judge.open", "trainer.judge.open"),
        ("trainer/serve/wire.py", IN_A_FUNCTION, "trainer.promote.gate"),
        ("trainer/promote/gate.py", FOR_TYPES_ONLY, "trainer.evaluate.comparison"),
        ("trainer/ledger/clock.py", "import trainer.run.session", "trainer.run.session"),
        ("trainer/world/chance.py", "import trainer.train.stage", "trainer.train.stage"),
        ("data_bridge/redaction.py", "import trainer.types", "trainer.types"),
    ],
    ids=["a stage another", "in a function", "for types only", "upwards", "below the stages", "the data bridge"],
)
def test_an_import_that_goes_the_wrong_way_breaks_a_contract(
    tmp_path: Path, name: str, code: str, imported: str
) -> None:
    done = lint(tmp_path, **{name: code})
    assert done.returncode == 1, done.stdout
    module = ".".join(Path(name).with_suffix("").parts)
    assert f"{module} -> {imported} (l." in done.stdout, done.stdout


def test_no_contract_looks_away() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert told["exclude_type_checking_imports"] is False
    assert {"layers", "independence", "forbidden", "acyclic_siblings"} == {one["type"] for one in told["contracts"]}
    assert not [option for contract in told["contracts"] for option in contract if "ignore" in option]
