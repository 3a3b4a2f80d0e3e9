"""What is printed, logged and written says what happened: no id that an agent chooses erases or forges a line of it.

Redaction over a finished document took everything between two crafted ids for the password of a URL; escape codes in
an id reached the terminal of whoever looked at the row.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import pty
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.quality import Exclusion, Reason
from data_bridge.redaction import json_text, one_line, register_secret
from tests.builders import NOW, WINDOW, insert_trajectory, insert_window
from tests.builders_ledger import make_record
from tests.builders_report import run_facts, window_facts
from trainer.cli import frame
from trainer.cli.output import say_json
from trainer.config.settings import Command
from trainer.ledger.model_lock import hold
from trainer.ledger.read.types import Words
from trainer.ledger.run_folder import RunFolder
from trainer.ledger.runs import Ledger
from trainer.report.page import render
from trainer.run.live_view import Lines
from trainer.types import Checkpoint, RunPlan, StepResult

ROOT = Path(__file__).resolve().parents[2]
OPENS, CLOSES = "x://a:", "b@c"
"""Two ids between which redaction once saw a password."""
EVIL = "t\x1b]0;owned\x07\x1b[2J\x1b[1;1H\nReady for a training run.\r\x9b31m\u202etxt\u2066\u200b"
"""Sets the title, clears the screen, forges a line, and turns the reading direction around."""
RAW = set("\x1b\x07\r\x9b\u202e\u2066\u200b")


def assert_harmless(text: str) -> None:
    assert not RAW & set(text)
    assert not any(line.startswith("Ready for a training run.") for line in text.splitlines())


def call(url: str, script: str, *flags: str, cwd: Path) -> str:
    """What a command prints, on both streams, at a terminal's other end or not."""
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    environment = {"DATABASE_URL": url, "PATH": os.environ["PATH"], "HINDSIGHT_HOME": str(cwd)}
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    return done.stdout + done.stderr


def on_terminal(url: str, script: str, *flags: str, cwd: Path) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "scripts" / script), *flags]
    environment = {"DATABASE_URL": url, "PATH": os.environ["PATH"], "HINDSIGHT_HOME": str(cwd), "COLUMNS": "200"}
    process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # its end
        pass
    process.communicate()
    os.close(ours)
    return shown.decode()


# Two ids around honest text


def test_two_ids_do_not_erase_the_reason_between_them_in_a_run_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run-1")
    folder.exclusions([Exclusion(OPENS, "mallory", WINDOW, Reason.DUPLICATE_AGENT, CLOSES)])
    [line] = (folder.path / "exclusions.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert (kept["agent"], kept["reason"], kept["detail"]) == ("mallory", "duplicate_agent", CLOSES)


def test_two_ids_do_not_erase_the_members_between_them_in_a_document(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run-1")
    members = [OPENS, "honest-1", "honest-2", CLOSES]
    folder.append("windows.jsonl", [{"members": members}])
    assert json.loads((folder.path / "windows.jsonl").read_text())["members"] == members


def test_a_secret_that_is_a_number_masks_no_number_of_a_document() -> None:
    """A password of digits made every document with that number in it unreadable."""
    register_secret("86753091")
    document = json.loads(json_text({"tokens": 86753091, "said": "it is 86753091"}))
    assert document == {"tokens": 86753091, "said": "it is [secret]"}


class _Open(HTMLParser):
    """The elements that are never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "span":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self.open.pop()


def test_two_ids_do_not_erase_the_tags_and_words_between_them_in_the_report() -> None:
    worst = Words(OPENS, 0.1, f"Sold@{CLOSES} without a reason.")
    windows = (replace(window_facts(1), worst=worst), *map(window_facts, range(2, 5)))
    page = render(run_facts(windows=windows))
    parser = _Open()
    parser.feed(page)
    assert not parser.open
    assert f"Sold@{CLOSES} without a reason." in page


def test_an_id_does_not_turn_the_report_around() -> None:
    windows = (replace(window_facts(1), worst=Words(EVIL, 0.1, EVIL)), window_facts(2))
    assert not RAW & set(render(run_facts(windows=windows)))


def test_a_url_with_a_password_in_a_reply_is_still_masked_everywhere(tmp_path: Path) -> None:
    """The other direction: redaction by value masks what redaction of the whole masked."""
    url = "postgres://me:hunter22@db/game"
    folder = RunFolder(tmp_path, "run-1")
    folder.write("summary.json", {"error": [{"said": url}]})
    page = render(run_facts(windows=(replace(window_facts(1), worst=Words("a", 0.1, url)),)))
    for text in (page, (folder.path / "summary.json").read_text(), one_line(url), json_text({"a": url})):
        assert "hunter22" not in text
        assert "[secret]" in text


# Escape codes


async def test_an_id_with_escape_codes_does_not_reach_the_terminal_of_check_windows(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await insert_window(database.pool, WINDOW, agents=3)
    await insert_trajectory(database.pool, EVIL.replace("t", "agent", 1), steps_json="{{{", trajectoryId=EVIL)
    await insert_trajectory(database.pool, "agent-8", steps_json="{{{", trajectoryId=f"{OPENS}\n{CLOSES}")
    until = ("--until", f"{NOW:%Y-%m-%dT%H:%M}")
    for flags in ((), ("--json",), ("--window", WINDOW)):
        assert_harmless(call(database_url, "check_windows.py", *until, *flags, cwd=tmp_path))
    drawn = on_terminal(database_url, "check_windows.py", *until, cwd=tmp_path).replace("\r\n", "\n")
    assert "\\x1b]0;owned" in drawn, "the id is shown, as text"
    assert not RAW - {"\x1b"} & set(drawn)
    assert "\x1b]" not in drawn
    assert "\x1b[2J" not in drawn


async def test_an_id_with_escape_codes_does_not_reach_the_terminal_of_lineage_or_promote(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    record = make_record(await insert_window(database.pool, WINDOW, agents=2))
    [group] = record.groups
    first, second = group.verdicts
    mallory = replace(first, trajectory_id=EVIL, explanation=EVIL)
    group = replace(group, agent_ids=(EVIL, "agent-2"), verdicts=(mallory, second))
    record = replace(record, groups=(group,))
    ledger = Ledger(database)
    await ledger.start_run(
        "run-1",
        model="hindsight",
        base_model=EVIL,
        backend="fake",
        fingerprint="same",
        settings={"note": EVIL},
        plan=RunPlan((), (), 0.0, 0),
    )
    async with hold(database, "hindsight") as lock:
        await ledger.batch_prepared(lock, record)
        point = Checkpoint("hindsight", 1, EVIL, "fake", EVIL)
        await ledger.batch_trained(lock, record, StepResult(point, 15, {}), {"reward": 0.4})
    for script, flags in {"lineage.py": ((), ("--json",)), "promote.py": (("--list",), ("--list", "--json"))}.items():
        for more in flags:
            shown = call(database_url, script, *more, cwd=tmp_path)
            assert "step" in shown
            assert_harmless(shown)


@pytest.mark.parametrize("debug", [(), ("--debug",)], ids=["a sentence", "a traceback"])
def test_an_error_that_quotes_an_id_is_one_sentence(debug: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    async def fails(settings: Command) -> int:
        raise NotEnoughData(f"The trajectory {EVIL} cannot be read.")

    assert frame.run_command(fails, Command, debug, prog="test", description="") == 3
    *_, sentence = (said := capsys.readouterr().err).splitlines()
    assert_harmless(said)
    assert sentence.startswith("error: The trajectory t\\x1b]0;owned")
    assert sentence.endswith("cannot be read.")


def test_a_log_line_that_quotes_an_id_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def logs(settings: Command) -> int:
        logging.getLogger("trainer.test").warning("trajectory %s left out", EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            logging.getLogger("trainer.test").exception("it failed")
        return 0

    assert frame.run_command(logs, Command, [], prog="test", description="") == 0
    said = capsys.readouterr().err
    assert not RAW & set(said)
    assert said.splitlines()[0].endswith("left out")


def test_a_line_of_progress_that_quotes_an_id_is_one_line() -> None:
    stream = io.StringIO()
    Lines(stream).say(f"Window {EVIL} judged")
    assert stream.getvalue().count("\n") == 1
    assert_harmless(stream.getvalue())


def test_json_for_machines_keeps_the_id_and_is_plain_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"trajectory": EVIL, "unpaired": "\ud800", "mean": float("nan")})
    said = capsys.readouterr().out
    assert said.isascii()
    assert msgspec.json.decode(said)["trajectory"] == EVIL
    assert json.loads(said)["mean"] is None


def test_commands_print_in_one_place_only() -> None:
    """A ``print`` of its own would show an id as it is."""
    for path in (path for room in ("trainer", "data_bridge") for path in (ROOT / room).rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        prints = [one.lineno for one in calls if isinstance(one.func, ast.Name) and one.func.id == "print"]
        assert not prints or path.name == "output.py", f"{path}: {prints}"
