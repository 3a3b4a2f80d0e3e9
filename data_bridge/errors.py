"""The errors a user can meet, each with the exit code that its message ends in.

Raise the narrowest class that fits, with one sentence that says what is wrong and what to do.
The command-line frame prints that sentence and exits with ``exit_code``; nothing else decides exit codes.
Each class is also the standard type that a caller without this module would expect, where there is one.
"""

from __future__ import annotations


class HindsightError(Exception):
    """Anything that went wrong in a way we can explain in one sentence."""

    exit_code = 1


class ConfigurationError(HindsightError, ValueError):
    """A setting is unset, misspelt or makes no sense. Names the setting."""

    exit_code = 2


class DatabaseError(HindsightError, ConnectionError):
    """The database cannot be reached, refuses us, or is not the game's. Never carries the password."""

    exit_code = 2


class NotEnoughData(HindsightError, LookupError):
    """There is nothing, or too little, to train, judge or evaluate on. Says what is missing."""

    exit_code = 3


class JudgeError(HindsightError, RuntimeError):
    """The judge failed for more groups than the run may lose."""

    exit_code = 4


class BackendError(HindsightError, RuntimeError):
    """Training failed, or would have trained nothing."""

    exit_code = 4


class PromotionRefused(HindsightError, RuntimeError):
    """The gate said no, or could not decide. The evidence is in the ledger."""

    exit_code = 5


class Interrupted(HindsightError):
    """Stopped on request after the step in hand; the run can be resumed.

    Not a KeyboardInterrupt: a task that raises one throws it through the event loop, traceback and all.
    """

    exit_code = 130
