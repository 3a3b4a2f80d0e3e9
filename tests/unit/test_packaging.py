"""The console scripts equal the scripts, importing a package has no side effects, and light commands stay light."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if not path.stem.startswith("_"))
HEAVY = ("torch", "art", "litellm", "transformers", "wandb", "polars")


def run(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_every_script_is_a_console_script_and_the_other_way_round() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {f"hindsight-{name.replace('_', '-')}": f"trainer.cli.{name}:main" for name in SCRIPTS}
    assert project["scripts"] == expected
    for name in SCRIPTS:
        assert f'run("trainer.cli.{name}")' in (ROOT / "scripts" / f"{name}.py").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_of_every_script_loads_nothing_heavy(name: str) -> None:
    code = (
        f"import sys; from trainer.cli.{name} import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([module for module in {HEAVY!r} if module in sys.modules], file=sys.stderr)\n"
        f"assert not any(module in sys.modules for module in {HEAVY!r})"
    )
    text = run(code)
    assert "usage:" in text
    assert "exit codes" in text


def test_importing_the_packages_has_no_side_effects() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("data_bridge", "trainer")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    ]
    code = (
        "import importlib, os, sys, threading\n"
        "before = dict(os.environ)\n"
        f"for name in {sorted(modules)!r}:\n"
        "    importlib.import_module(name)\n"
        "assert dict(os.environ) == before, 'the environment was changed'\n"
        "assert threading.active_count() == 1, 'a thread was started'\n"
        "assert 'art' not in sys.modules, 'art was imported'\n"
    )
    assert run(code) == ""


def test_data_bridge_never_imports_the_trainer_and_nobody_imports_scripts() -> None:
    for package, forbidden in (
        ("data_bridge", r"^\s*(from|import) (trainer|scripts)\b"),
        ("trainer", r"^\s*(from|import) scripts\b"),
    ):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(forbidden, path.read_text(), re.MULTILINE), path
