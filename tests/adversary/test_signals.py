"""Signals as a script, ``timeout``, ``nohup`` and a closed terminal send them: the step is finished, exit 130."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from data_bridge.database import Database
from tests.adversary.served import serving
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import ON_LOG, Command, insert_windows, trained

ROOT = Path(__file__).resolve().parents[2]
SAFETY_NET = 300

STEP_IN_HAND = """
import asyncio, sys
from data_bridge.errors import Interrupted
from trainer.cli.frame import run_command
from trainer.config.settings import Command
from trainer.run import shutdown
async def work(settings):
    with shutdown.stop_on_signal(lambda line: print(line, flush=True)) as stop:
        print("working", flush=True)
        await stop.wait()
        await asyncio.to_thread(sys.stdin.readline)
        print("finished", flush=True)
    raise Interrupted("Stopped after the current step; the same command resumes the run.")
async def deaf(settings):
    with shutdown.stop_on_signal(lambda line: None):
        print("working", flush=True)
        sys.stdin.read()  # blocks the event loop
async def stubborn(settings):
    print("working", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("cancelled", flush=True)
shutdown.SAME_REQUEST = float(sys.argv[2])
sys.exit(run_command(locals()[sys.argv[1]], Command, [], prog="test", description=""))
"""
"""A command whose step lasts until the test writes a line."""


def ignoring(*numbers: int) -> Callable[[], None]:
    """For ``preexec_fn``: what a script's ``&`` (SIGINT) or ``nohup`` (SIGHUP) does before it starts a command."""

    def ignore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    return ignore


class Running:
    """A command in its own process group, read line by line."""

    def __init__(
        self,
        work: str,
        *,
        before: Sequence[str] = (),
        same_request: float = 1.0,
        preexec: Callable[[], None] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", STEP_IN_HAND, work, str(same_request)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=preexec,
        )
        self.read_until("working")

    def read_until(self, words: str) -> None:
        assert self.process.stdout is not None
        net = threading.Timer(SAFETY_NET, self.process.kill)
        net.start()
        for line in self.process.stdout:
            if words in line:
                break
        else:
            raise AssertionError(f"it ended with {self.process.wait()} before it said {words!r}")
        net.cancel()

    def ended(self, line: str = "") -> tuple[int, str]:
        rest, _ = self.process.communicate(line, timeout=SAFETY_NET)
        return self.process.returncode, rest


def test_timeout_signals_the_process_and_then_its_group_and_that_is_one_request() -> None:
    running = Running("work", before=("timeout", "600"))
    running.process.send_signal(signal.SIGTERM)  # it passes a signal on in the same way as its own
    running.read_until("Stopping after the current step")
    code, rest = running.ended("\n")
    assert (code, rest.splitlines()[0]) == (130, "finished")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_of_one_moment_are_one_request_to_stop(number: signal.Signals) -> None:
    """A terminal that closes sends SIGHUP, its shell again; systemd sends SIGTERM and SIGHUP together."""
    running = Running("work", same_request=600.0)
    running.process.send_signal(number)
    running.read_until("Stopping after the current step")
    for another in (number, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        running.process.send_signal(another)
    code, rest = running.ended("\n")
    assert (code, rest.splitlines()[0]) == (130, "finished")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_later_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    running = Running("work", same_request=0.0)
    running.process.send_signal(number)
    running.read_until("Stopping after the current step")
    running.process.send_signal(number)
    running.process.wait(SAFETY_NET)
    code, rest = running.ended()
    assert (code, rest) == (130, "")


def test_a_second_signal_ends_even_a_process_whose_event_loop_is_blocked() -> None:
    running = Running("deaf", same_request=0.0)
    running.process.send_signal(signal.SIGTERM)
    running.process.send_signal(signal.SIGHUP)  # two of one number could reach it as one
    assert running.process.wait(SAFETY_NET) == 130


def test_a_second_sigterm_ends_a_command_that_does_not_let_itself_be_cancelled() -> None:
    running = Running("stubborn", same_request=0.0)
    running.process.send_signal(signal.SIGTERM)
    running.read_until("cancelled")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(SAFETY_NET) == 130


@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGHUP])
def test_what_was_ignored_at_the_start_stays_ignored_and_sigterm_works(ignored: signal.Signals) -> None:
    """The ignored signal first: were it heard, SIGTERM would be the second and end the step unfinished."""
    running = Running("work", same_request=0.0, preexec=ignoring(ignored))
    running.process.send_signal(ignored)
    running.process.send_signal(signal.SIGTERM)
    running.read_until("Stopping after the current step")
    running.process.send_signal(ignored)
    code, rest = running.ended("\n")
    assert (code, rest.splitlines()[0]) == (130, "finished")


def test_a_script_that_starts_it_with_an_ampersand_can_stop_it_with_kill() -> None:
    script = 'python="$1"; "$python" -c "$2" work 1 <&3 3<&- & echo "$!"; wait "$!"; echo "exit $?"'
    running = subprocess.Popen(
        ["sh", "-c", f"exec 3<&0; {script}", "sh", sys.executable, STEP_IN_HAND],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    pid = int(running.stdout.readline())
    assert running.stdout.readline() == "working\n"
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    rest, _ = running.communicate("\n", timeout=SAFETY_NET)
    assert rest.splitlines()[1] == "finished"
    assert rest.splitlines()[-1] == "exit 130"


def test_serve_started_by_a_script_ends_with_0_on_sigterm(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory, ignoring=(signal.SIGINT,)) as served:
        os.kill(served.pid, signal.SIGINT)
        assert served.seconds_to_health() < SAFETY_NET
        assert served.ended(signal.SIGTERM, SAFETY_NET) == (0, "")


async def test_a_scheduler_started_by_a_script_ends_on_sigterm_while_it_waits(
    database_url: str, tmp_path: Path
) -> None:
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "scripts" / "schedule_training.py"), "--cron", "0 0 1 1 *"),
        env=os.environ | {"DATABASE_URL": database_url, "HINDSIGHT_HOME": str(tmp_path)},
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=ignoring(signal.SIGINT),
    )
    async with asyncio.timeout(SAFETY_NET):
        assert running.stdout is not None
        assert b"Next period" in await running.stdout.readline()
        running.send_signal(signal.SIGTERM)
        _, errors = await running.communicate()
    assert (running.returncode, errors) == (130, b"Interrupted.\n")


async def test_a_run_started_by_a_script_finishes_its_step_on_sigterm_and_resumes(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = Command(database_url, tmp_path / "home", shared_tiny_model(tmp_path_factory))
    ids, flags = await insert_windows(database, 8), (*ON_LOG, "--groups-per-step", "1")
    process = command.start(*flags, ignoring=(signal.SIGINT,))
    while process.is_alive() and not command.checkpoints():
        await asyncio.sleep(0.01)
    assert process.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        os.kill(process.pid, number)
    code, output = await command.ended(process)
    assert code == 130, output
    assert "resumes the run" in output
    states = await database.pool.fetch("SELECT DISTINCT state FROM hindsight.batches")
    assert [row["state"] for row in states] == ["trained"]
    assert 0 < len(await trained(database)) < len(ids)
    code, output = await command.run(*flags)
    assert code == 0, output
    assert await trained(database) == dict.fromkeys(ids, 1)


async def test_a_closed_terminal_ends_a_run_after_its_step(
    database: Database, database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On the terminal itself, with the live table: a write to it after it is gone is an error."""
    await insert_windows(database, 8)
    home, tiny = tmp_path / "home", shared_tiny_model(tmp_path_factory)
    flags = ("--home", str(home), "--base-model", str(tiny), "--backend", "cpu", "--threads", "1", "--lora-rank", "2")
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"DATABASE_URL": database_url, "TERM": "xterm"})
        program = (sys.executable, str(ROOT / "scripts" / "train_mmo.py"))
        os.execv(sys.executable, [*program, *flags, *ON_LOG, "--groups-per-step", "1", "--no-promote"])
    await asyncio.to_thread(_look_on_until, terminal, lambda: bool(list(home.glob("checkpoints/hindsight/step-*"))))
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    row = await database.pool.fetchrow("SELECT state, error FROM hindsight.runs")
    assert row is not None
    assert (row["state"], "Stopped" in row["error"]) == ("interrupted", True)
    states = await database.pool.fetch("SELECT DISTINCT state FROM hindsight.batches")
    assert [row["state"] for row in states] == ["trained"]


def _look_on_until(terminal: int, enough: Callable[[], bool]) -> None:
    """Read what is drawn, then close the window."""
    while not enough():
        os.read(terminal, 65536)  # an error if the command has ended
    os.close(terminal)
