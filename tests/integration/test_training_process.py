"""The training of a period as a process: what it says, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainer.run.shutdown import SAME_REQUEST
from trainer.schedule.training_process import Ended, train

ROOT = Path(__file__).parents[2]


async def _run(script: str) -> Ended:
    never = asyncio.Event()
    async with asyncio.timeout(60):
        return await train((sys.executable, "-c", script), os.environ, stop=never, lost=never)


async def test_the_last_line_on_stderr_explains_the_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    ended = await _run("import sys; print('at work', file=sys.stderr); sys.exit('the judge is down\\n\\n')")
    assert (ended.exit_code, ended.last_words) == (1, "the judge is down")
    assert not ended.was_interrupted


async def test_a_progress_bar_that_never_ends_its_line_does_not_hang_the_scheduler() -> None:
    bar = (
        "import sys\nfor step in range(40_000): sys.stderr.write(f'\\r{step} of 40000 ü')\nsys.stderr.write('\\rdone')"
    )
    ended = await _run(bar)
    assert (ended.exit_code, ended.last_words) == (0, "done")


async def test_a_process_that_outlives_the_training_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.schedule.training_process._STILL_TALKING", 0.2)
    ended = await _run("import subprocess, sys; subprocess.Popen(['sleep', '20']); sys.exit('it goes on')")
    assert ended.last_words == "it goes on"


async def test_a_training_whose_claim_is_lost_is_asked_to_stop_and_we_go_on() -> None:
    stop, lost = asyncio.Event(), asyncio.Event()
    training = asyncio.create_task(
        train((sys.executable, "-c", "import time; time.sleep(60)"), os.environ, stop=stop, lost=lost)
    )
    await asyncio.sleep(1)
    lost.set()
    assert (await asyncio.wait_for(training, 60)).was_interrupted
    assert not stop.is_set()


STEP = """
import signal, sys, time
from pathlib import Path
log = Path(sys.argv[1])
heard = []
def hear(number, frame):
    heard.append(signal.Signals(number).name)
    log.write_text(" ".join(heard))
signal.signal(signal.SIGINT, hear)
signal.signal(signal.SIGTERM, hear)
log.write_text("")
while len(heard) < int(sys.argv[2]):
    time.sleep(0.02)
for _ in range(100):  # the step in hand, twenty times as long as the frame takes to say it again
    time.sleep(0.02)
log.write_text(" ".join([*heard, "finished"]))
sys.exit(130)
"""
"""A training that writes down which signals it hears, and finishes its step after so many of them."""

SCHEDULER = """
import sys
from datetime import timedelta
from trainer.cli import frame, schedule_training
from trainer.schedule import readiness
frame._CANCEL_AGAIN_AFTER = 0.1
async def ready(database, settings):
    return readiness.Readiness(True, "")
schedule_training.readiness_of = ready
sys.exit(schedule_training.main(sys.argv[1:]))
"""
"""The real command, whose frame says a cancellation again ten times a second, without the question for windows."""


class Scheduled:
    """A scheduler in a process group of its own, and the log of the signals that its training hears."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.log = log

    async def heard(self, signals: str) -> None:
        async with asyncio.timeout(60):
            while not self.log.exists() or self.log.read_text() != signals:
                await asyncio.sleep(0.02)

    async def ended(self) -> tuple[int, str]:
        _, errors = await asyncio.wait_for(self.process.communicate(), 120)
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


async def scheduled(
    folder: Path, database_url: str, *, ends_after: int, mode: str = "--once", ignored: Sequence[int] = ()
) -> Scheduled:
    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    training, log = folder / "training.py", folder / "signals.txt"
    training.write_text(STEP)
    command = f"{sys.executable} {training} {log} {ends_after}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCHEDULER, mode, "--cron", "* * * * * */5", "--command", command),
        env=os.environ | {"DATABASE_URL": database_url, "HINDSIGHT_HOME": str(folder), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=ignore,
    )
    running = Scheduled(process, log)
    await running.heard("")
    return running


@pytest.mark.parametrize(
    ("number", "ignored"),
    [
        pytest.param(signal.SIGINT, (), id="Ctrl-C"),
        pytest.param(signal.SIGTERM, (), id="kill"),
        pytest.param(signal.SIGHUP, (), id="closed terminal"),
        pytest.param(signal.SIGTERM, (signal.SIGINT,), id="kill, started with &"),
        pytest.param(signal.SIGTERM, (signal.SIGINT, signal.SIGHUP, signal.SIGTERM), id="kill, all ignored"),
    ],
)
async def test_a_stop_reaches_the_training_once_and_waits_for_its_step(
    number: signal.Signals, ignored: Sequence[int], database_url: str, tmp_path: Path
) -> None:
    running = await scheduled(tmp_path, database_url, ends_after=1, ignored=ignored)
    os.killpg(running.process.pid, number)  # as a terminal does: to everyone in the group
    running.process.send_signal(number)  # as `timeout` does, too
    code, errors = await running.ended()
    assert running.log.read_text() == "SIGINT finished"
    assert code == 130
    assert "the next scheduler resumes it" in errors
    assert "Traceback" not in errors


async def test_a_second_ctrl_c_gets_through_to_the_training(database_url: str, tmp_path: Path) -> None:
    running = await scheduled(tmp_path, database_url, ends_after=2)
    os.killpg(running.process.pid, signal.SIGINT)
    await running.heard("SIGINT")
    await asyncio.sleep(SAME_REQUEST)  # sooner it would be the same request
    os.killpg(running.process.pid, signal.SIGINT)
    await running.heard("SIGINT SIGINT")
    code, _ = await running.ended()
    assert (code, running.log.read_text()) == (130, "SIGINT SIGINT finished")


async def test_a_scheduler_that_runs_for_ever_ends_with_the_training_it_was_stopped_in(
    database_url: str, tmp_path: Path
) -> None:
    running = await scheduled(tmp_path, database_url, ends_after=1, mode="--no-once")
    running.process.send_signal(signal.SIGTERM)
    code, _ = await running.ended()
    assert (code, running.log.read_text()) == (130, "SIGINT finished")
