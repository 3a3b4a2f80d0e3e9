"""A full disk: which faults mean it, and the sentence that names the place."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_bridge.errors import DiskFull

RESUME = "free some space and run the same command again; it resumes, and nothing is lost."


def is_full(error: BaseException) -> bool:
    """Whether a write failed for want of space, or of the user's share of it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def told_if_full(place: Path, advice: str = RESUME) -> Iterator[None]:
    """DiskFull, which names ``place``, instead of an OSError that seldom does; other errors are left as they are."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(f"The disk of {place} is full ({error.strerror}): {advice}") from error
        raise
