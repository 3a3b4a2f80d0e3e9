"""The errors a user can see, each with the exit code of the command that fails with it.

Raise the narrowest class that fits, with one sentence that says what is wrong and what to do.
The command line prints that sentence and exits with ``exit_code``; nothing else decides exit codes.
Where Python has a matching built-in exception, the class also derives from it.
"""

from __future__ import annotations


class HindsightError(Exception):
    """A failure that we can explain in one sentence."""

    exit_code = 1


class ConfigurationError(HindsightError, ValueError):
    """A setting is missing, misspelt or invalid. The message names the setting."""

    exit_code = 2


class DatabaseError(HindsightError, ConnectionError):
    """The database is unreachable, refuses us, or is not the game's. The message never contains the password."""

    exit_code = 2


class DatabaseFull(DatabaseError):
    """The database's disk is full. What was stored before is there, and the same command resumes."""

    exit_code = 4


class DatabaseLost(DatabaseError):
    """The database was open and is gone for longer than the command waits for it. The same command resumes."""

    exit_code = 4


class DiskFull(HindsightError, OSError):
    """A disk of this machine is full. The message names the place."""

    exit_code = 4


class NotEnoughData(HindsightError, LookupError):
    """There is no data, or too little, to train, judge or evaluate on. The message says what is missing."""

    exit_code = 3


class JudgeError(HindsightError, RuntimeError):
    """The judge failed on more groups than the run allows."""

    exit_code = 4


class BackendError(HindsightError, RuntimeError):
    """Training failed, or would have trained nothing."""

    exit_code = 4


class EndpointGone(BackendError):
    """The endpoint of the agents' model is gone for longer than the command waits for it. The same command resumes."""


class StageGone(HindsightError, RuntimeError):
    """A part of the run is gone for good: workers, or the stage that one waits for. The message names the unit."""

    exit_code = 4


class PromotionRefused(HindsightError, RuntimeError):
    """The gate rejected the checkpoint or could not decide. The evidence is in the ledger."""

    exit_code = 5


class Interrupted(HindsightError):
    """Stopped on request after the current step; the run can be resumed.

    Not a KeyboardInterrupt: when a task raises one, it goes through the event loop and prints a traceback.
    """

    exit_code = 130
