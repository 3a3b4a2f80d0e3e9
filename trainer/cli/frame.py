"""What every command has in common: settings in, one sentence on an error, the documented exit code out."""

from __future__ import annotations

import asyncio
import atexit
import errno
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from data_bridge.disk import RESUME, is_full
from data_bridge.errors import ConfigurationError, DiskFull, HindsightError, NotEnoughData
from data_bridge.private_files import UMASK, close_home, owner_hint
from data_bridge.redaction import RedactingFilter, traceback_text
from trainer.cli.output import say
from trainer.config.sections import DatabaseSecrets, DatabaseSettings
from trainer.config.settings import Command, CommonSettings
from trainer.config.sources import load
from trainer.run.shutdown import INTERRUPTED, on_first_request, on_request_to_stop

if TYPE_CHECKING:
    from data_bridge.database import Database

S = TypeVar("S", bound=Command)

EXIT_CODES = """exit codes:
  0 done; 2 configuration; 3 not enough data; 4 judge, backend, database or disk failed;
  5 promotion refused; 130 interrupted, resumable"""


def run_command(
    work: Callable[[S], Awaitable[int]],
    cls: type[S],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str,
    epilog: str = EXIT_CODES,
) -> int:
    """Parse ``argv`` into ``cls``, await ``work``, and turn its result or error into an exit code."""
    _look_for_garbage_rarely()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    before = os.umask(UMASK)
    try:
        from trainer.config.commands import all_keys, all_variables

        with on_request_to_stop(_interrupt):
            settings = load(
                cls,
                arguments,
                prog=prog,
                description=description,
                epilog=epilog,
                known_variables=all_variables(),
                known_keys=all_keys(),
            )
            debug = settings.common.debug
            _set_up_logging(debug)
            close_home(settings.common.home)
            code = asyncio.run(_awaited(work(settings)))
            sys.stdout.flush()
            return code
    except HindsightError as error:
        return _fail(error, error.exit_code, debug)
    except (KeyboardInterrupt, asyncio.CancelledError):
        _say("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output closed the pipe (`| head`): not our error.
        return 0
    except PermissionError as error:
        return _fail(_explain(error), ConfigurationError.exit_code, debug)
    except Exception as error:
        if is_full(error):
            place = getattr(error, "filename", None) or "the output"
            error = DiskFull(f"The disk of {place} is full ({os.strerror(errno.ENOSPC)}): {RESUME}")
            return _fail(error, error.exit_code, debug)
        return _fail(error, 1, debug)
    finally:
        os.umask(before)
        _drop_what_cannot_be_written()


class NamesDatabase(Protocol):
    """The settings of a command that opens the database."""

    @property
    def common(self) -> CommonSettings: ...

    @property
    def database(self) -> DatabaseSettings: ...

    @property
    def secrets(self) -> DatabaseSecrets: ...


def has_database(settings: NamesDatabase) -> bool:
    """Whether the database that the settings name exists, as far as can be said without opening it."""
    return settings.secrets.database_url is not None or (settings.common.home / "postgres" / "data").exists()


def database_of(
    settings: NamesDatabase, *, migrate: bool = False, read_only: bool = False, existing: bool = False
) -> AbstractAsyncContextManager[Database]:
    """The database that the settings name: DATABASE_URL, or the embedded one.

    ``existing`` is for commands that only look: NotEnoughData if there is no embedded one yet, which is not created.
    """
    from data_bridge.database import open_database

    secret = settings.secrets.database_url
    if existing and not has_database(settings):
        home = settings.common.home.absolute()
        raise NotEnoughData(
            f"There is nothing to read: DATABASE_URL is not set, and {home} has no database yet; set DATABASE_URL or "
            "HINDSIGHT_HOME, or start with `python scripts/train_mmo.py`."
        )
    return open_database(
        secret.get_secret_value() if secret is not None else None,
        settings.common.home,
        statement_timeout=settings.database.statement_timeout,
        migrate=migrate,
        read_only=read_only,
        gone_after=settings.database.gone_after,
    )


def _interrupt() -> None:
    """Before and after the work, which handles requests to stop itself."""
    raise KeyboardInterrupt


_CANCEL_AGAIN_AFTER = 10.0
"""Seconds: long enough to close open resources, short enough for a person at the keyboard."""


async def _awaited(work: Awaitable[int]) -> int:
    """The result of ``work``. An interruption that got lost is repeated.

    ``asyncio.wait_for`` of Python 3.11, which the database driver uses, drops a cancellation that arrives
    just as the awaited work finishes; a command that runs forever would then never end.
    """
    task, this = asyncio.ensure_future(work), asyncio.current_task()
    assert this is not None
    with on_first_request(this.cancel):
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_AGAIN_AFTER)
    return task.result()


def _explain(error: PermissionError) -> ConfigurationError:
    """A file that we may not use, most often one of a home that root made."""
    path = Path(error.filename) if isinstance(error.filename, str) else None
    hint = owner_hint(path if path.exists() else path.parent) if path is not None else ""
    explained = ConfigurationError(f"{path or 'A file'} cannot be used ({error.strerror}){hint}.")
    explained.__cause__ = error
    return explained


_OBJECTS_BETWEEN_LOOKS = 10_000
"""Python's own 700 makes it look through half a million objects again and again while torch and art are imported, for
1.4 s of the 7.4 s of CPU that this takes."""


@cache
def _look_for_garbage_rarely() -> None:
    """Not at all when the process ends, in all that torch and art import: seconds, for nothing."""
    gc.set_threshold(_OBJECTS_BETWEEN_LOOKS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)


def _say(*lines: str) -> None:
    with suppress(OSError):  # the exit code has to do if stderr is a closed terminal, or a file on a full disk
        say(*lines, to=sys.stderr)


def _drop_what_cannot_be_written() -> None:
    """Otherwise Python tries again when it ends, and replaces our exit code with its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(error: BaseException, exit_code: int, debug: bool) -> int:
    if debug:
        _say(*traceback_text(error).splitlines())
    sentence = str(error) or type(error).__name__
    if not isinstance(error, HindsightError):
        sentence = f"internal error ({type(error).__name__}): {sentence}; run again with --debug for the traceback."
    _say(f"error: {sentence}")
    return exit_code


def _set_up_logging(debug: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RedactingFilter())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("trainer", "data_bridge"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)
