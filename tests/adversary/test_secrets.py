"""Secrets come from a variable or ``.env``: every user of a machine can read every command line on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_bridge.redaction import holds_password
from tests.builders import NOW

ROOT = Path(__file__).resolve().parents[2]
SECRET = "hunter22-of-the-game"


def call(script: str, *flags: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


REFUSED = {
    "before the host": ("check_windows.py", "--database-url", f"postgresql://me:{SECRET}@db/game", "DATABASE_URL"),
    "as a parameter": ("serve.py", "--database-url", f"postgresql://me@db/game?password={SECRET}", "DATABASE_URL"),
    "of a key": ("lineage.py", "--database-url", f"postgres://db/g?sslpassword={SECRET}", "DATABASE_URL"),
    "of the judge": ("judge_windows.py", "--judge-base-url", f"https://me:{SECRET}@judge/v1", "JUDGE_BASE_URL"),
    "of a webhook": ("schedule_training.py", "--notify-url", f"https://hooks/{SECRET}", "HINDSIGHT_NOTIFY_URL"),
    "the judge's key": ("judge_windows.py", "--judge-api-key", SECRET, "JUDGE_API_KEY"),
    "the tracker's key": ("train_mmo.py", "--wandb-api-key", SECRET, "WANDB_API_KEY"),
    "the server's key": ("serve.py", "--serve-key", SECRET, "HINDSIGHT_SERVE_KEY"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_secret_as_a_flag_is_one_sentence_that_names_the_variable(name: str, tmp_path: Path) -> None:
    script, flag, value, variable = REFUSED[name]
    argv = (flag, value) if len(name) % 2 else (f"{flag}={value}",)
    done = call(script, *argv, cwd=tmp_path)
    assert done.returncode == 2
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(f"error: {flag}")
    assert f"set {variable}" in sentence
    assert SECRET not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "nothing was opened"


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("judge", f'judge_base_url = "https://me:{SECRET}@judge/v1"'),
        ("secrets", f'database_url = "postgres://a:{SECRET}@b"'),
    ],
)
def test_a_password_in_a_run_toml_is_refused(section: str, line: str, tmp_path: Path) -> None:
    """The file is made to be committed and reviewed."""
    (tmp_path / "run.toml").write_text(f"[{section}]\n{line}\n")
    done = call("judge_windows.py", "--config", "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert SECRET not in done.stderr
    assert "instead" in done.stderr


def test_a_url_without_a_password_may_be_a_flag(database_url: str, tmp_path: Path) -> None:
    until = ("--until", f"{NOW:%Y-%m-%dT%H:%M}")
    done = call("check_windows.py", "--database-url", database_url, *until, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert not holds_password(database_url)


def test_a_training_of_the_scheduler_has_no_secret_in_its_arguments(database_url: str, tmp_path: Path) -> None:
    """What the scheduler starts shows its own command line, as ``ps`` would."""
    url = database_url.replace("postgres@", f"postgres:{SECRET}@")
    (tmp_path / "show.py").write_text(
        "import os, sys, pathlib\n"
        "for pid in (os.getpid(), os.getppid()):\n"
        "    sys.stderr.write(pathlib.Path(f'/proc/{pid}/cmdline').read_text().replace('\\0', ' ') + '\\n')\n"
        f"assert {SECRET!r} in os.environ['DATABASE_URL']\n"
        "sys.stderr.write('the training knows it\\n')\n"
    )
    (tmp_path / "ready").write_text("")
    variables = {"DATABASE_URL": url, "HINDSIGHT_HOME": str(tmp_path), "HINDSIGHT_COMMAND": f"{sys.executable} show.py"}
    code = (
        "import sys; from unittest import mock; from trainer.cli import schedule_training as s;"
        "from trainer.schedule.readiness import Readiness\n"
        "async def ready(*_): return Readiness(True, 'ready')\n"
        "with mock.patch.object(s, 'readiness_of', ready): sys.exit(s.main(['--once']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the training knows it" in done.stderr, done.stderr
    assert SECRET not in done.stdout + done.stderr
