"""Commands in processes that start in no time: forked from a server that has already imported torch and art.

``start`` gives a process that runs the command with the given arguments and environment; it is a process like any
other (it can be killed, its exit code read), only its imports were done before.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOADED = ["tests.fakes.training_imports"]


def start(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: Path,
    *,
    errors: Path | None = None,
    command: str = "train_mmo",
    ignoring: Sequence[int] = (),
    folder: Path | None = None,
    files: int | None = None,
) -> ForkServerProcess:
    """Run ``command`` with ``argv``; what it prints is appended to ``output``, its stderr to ``errors`` if given.

    ``ignoring``: signals that it finds ignored, as under ``nohup`` or started by a script with ``&``.
    ``folder``: where it is started. ``files``: how many it may have open, with no way to raise that.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    arguments = (command, list(argv), dict(environment), str(output), str(errors or output), list(ignoring))
    process = context.Process(target=_run, args=(*arguments, folder, files))
    process.start()
    return process


def _at_start(number: int) -> Any:
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL


def _run(
    command: str,
    argv: list[str],
    environment: dict[str, str],
    output: str,
    errors: str,
    ignoring: list[int],
    folder: Path | None,
    files: int | None,
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number in ignoring else _at_start(number))
    for path, stream in ((output, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    if folder is not None:
        os.chdir(folder)
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.environ.update(environment)
    code = import_module(f"trainer.cli.{command}").main(argv)
    sys.stdout.flush()
    os._exit(code)  # no clean-up of the server's modules, as after any end of a process
