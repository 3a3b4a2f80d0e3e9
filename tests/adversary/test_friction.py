"""What a newcomer trips over is one sentence that says what to do, and looking changes nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from tests.builders import NOW, WINDOW, insert_window
from tests.builders_judge import make_group
from trainer import progress
from trainer.cli.output import alive
from trainer.config.settings import parse_duration, written_duration
from trainer.judge.client import _reply
from trainer.judge.cost import CostEstimate
from trainer.judge.prompt import CUT_OFF, fit, load_rubric
from trainer.judge.view import view_of
from trainer.progress import Heartbeat, Progress, counted
from trainer.run.live_view import Lines

ROOT = Path(__file__).resolve().parents[2]


def call(script: str, *flags: str, cwd: Path, text: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    environment = {"PATH": os.environ["PATH"], **more}
    return subprocess.run(
        command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=60, input=text
    )


LOOKS = {
    "check_windows.py": (),
    "lineage.py": (),
    "report.py": ("--list",),
    "promote.py": ("--list",),
    "traces.py": ("export", "-"),
    "run_migrations.py": ("--status",),
    "train_mmo.py": ("--dry-run", "--simulate", "off"),
}


@pytest.mark.parametrize("script", LOOKS)
def test_a_look_creates_no_home_and_says_where_it_looked(script: str, tmp_path: Path) -> None:
    done = call(script, *LOOKS[script], cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert f"{tmp_path}/.hindsight has no database yet" in sentence
    assert "DATABASE_URL" in sentence
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_the_closed_loop_creates_no_home(tmp_path: Path) -> None:
    done = call("train_mmo.py", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing was played, paid for or written" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_look_at_the_games_database_creates_no_home(database_url: str, tmp_path: Path) -> None:
    for script, flags in {"check_windows.py": (), "promote.py": ("--list",), "report.py": ("--list",)}.items():
        call(script, *flags, cwd=tmp_path, DATABASE_URL=database_url)
    assert not list(tmp_path.iterdir())


SENTENCES = {
    ("check_windows.py", "--lookback", "-3d"): "without a sign",
    ("check_windows.py", "--lookback", "45"): "a number and its unit",
    ("check_windows.py", "--lookback", "5min"): "90s, 45m, 36h, 7d or 2w",
    ("train_mmo.py", "--max-cots", "5"): "did you mean --max-cost?",
    ("check_windows.py", "--lookbak=3d"): "did you mean --lookback?",
}


@pytest.mark.parametrize("argv", SENTENCES, ids=" ".join)
def test_a_wrong_flag_or_value_is_one_sentence_with_what_to_write(argv: tuple[str, ...], tmp_path: Path) -> None:
    done = call(*argv, cwd=tmp_path)
    assert done.returncode == 2
    [sentence] = done.stderr.splitlines()
    assert SENTENCES[argv] in sentence
    assert argv[1].partition("=")[0] in sentence


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [("90s", 90, "90s"), ("0.5m", 30, "30s"), ("120s", 120, "2m"), ("36h", 129600, "36h")],
)
def test_durations_may_be_in_seconds(text: str, seconds: float, written: str) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)
    assert written_duration(parse_duration(text)) == written
    assert parse_duration(written) == parse_duration(text)


async def test_traces_go_to_standard_output_and_come_from_standard_input(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    await insert_window(database.pool, WINDOW, agents=2)
    flags = ("--until", NOW.isoformat(), "--json")
    out = call("traces.py", "export", "-", *flags, cwd=tmp_path, DATABASE_URL=database_url)
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("\n") == 2
    assert '"trajectories": 2' in out.stderr
    back = call("traces.py", "import", "-", cwd=tmp_path, DATABASE_URL=database_url, text=out.stdout)
    assert "2 trajectories" in back.stdout, back.stderr
    assert not (tmp_path / "-").exists()


# Silence


def test_a_silent_command_says_every_half_minute_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.HEARTBEAT == 30
    heard, twice = [], threading.Event()

    def hear(line: str) -> None:
        heard.append(line)
        if len(heard) == 2:
            twice.set()

    with Heartbeat(hear, "judging windows", every=0.01):
        assert twice.wait(20)
    assert heard[0].startswith("still running: judging windows (for ")


class Listened(io.StringIO):
    """A stream that tells when a line about ``awaited`` has come."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.awaited, self.came = awaited, threading.Event()

    def write(self, text: str) -> int:
        if "still running" in text and self.awaited in text:
            self.came.set()
        return super().write(text)


@pytest.mark.parametrize("stage", ["evaluating hindsight@step3", "judged 3/10", "converting the model"])
def test_a_piped_run_says_where_it_is_during_a_long_stage(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT", 0.02)
    monkeypatch.setattr("trainer.run.live_view._SHOW_EVERY", 0.0)
    stream = Listened(stage)
    view = Lines(stream)
    if stage.startswith("judged"):
        view.show(Progress(groups=10, groups_judged=3))
    else:
        view.say(stage)
    assert stream.came.wait(20), stream.getvalue()
    view.close()


def test_other_commands_say_so_too_but_never_with_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT", 0.02)
    stream = Listened("reading windows")
    monkeypatch.setattr(sys, "stderr", stream)
    before = threading.active_count()
    with alive("reading windows", quiet=True):
        assert threading.active_count() == before
    with alive("reading windows", quiet=False):
        assert stream.came.wait(20)


# Words


def test_advice_for_the_judge_is_not_said_to_the_user() -> None:
    fitted = fit(view_of(make_group(1.0, 2.0), ("action",)), load_rubric("trading"), 24_000)
    asked = fitted.prompt([0, 1], b"0" * 16)
    cut = '{"choices": [{"message": {"content": "{"}, "finish_reason": "length"}]}'
    said = _reply(cut, asked, 1.0).fault
    assert said == CUT_OFF
    assert "--judge-reply-tokens" in said
    assert "explanation" not in said
    again = fitted.prompt([0, 1], b"1" * 16, said).user
    assert "keep every explanation to one short sentence" in again
    assert "--judge-reply-tokens" not in again


def test_one_is_singular() -> None:
    assert counted(1, "trajectory") == "1 trajectory"
    assert str(CostEstimate(1, 100, 1, 0.5)).startswith("1 call, ")
