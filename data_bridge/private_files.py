"""The home and what is in it belong to one user: agents' prompts, replies and names are nobody else's business.

Every command runs with the umask below, so that whatever it or a library creates is closed to others from the start.
Locks live in the home too: somebody who can open a lock file can also hold it and block us.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

UMASK = 0o077

_OURS = frozenset({"art", "checkpoints", "console", "models", "postgres", "promoted", "runs", "spool", "workers"})
"""The folders of a home."""


def make_private(folder: Path) -> None:
    """Create ``folder`` for its owner only, whatever the umask; one that exists stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def close_home(home: Path) -> None:
    """Close a home that an earlier version left open to others, and say so. One that is not ours is left alone.

    A folder that also holds other things, a shared ``/data`` for example, stays open; ours in it are closed.
    """
    with suppress(OSError):  # there is none, or it cannot be read: whoever needs it says so
        entries = {entry.name for entry in home.iterdir()}
        own = [home] if entries and entries <= _OURS else [home / name for name in sorted(entries & _OURS)]
        for folder in own:
            _close(folder)


def owner_hint(path: Path) -> str:
    """What to do about a path that belongs to another user, as the end of a sentence; empty if it is ours."""
    try:
        owner = path.stat().st_uid
    except OSError:
        return ""
    if owner == os.geteuid():
        return ""
    return (
        f"; it belongs to the user with id {owner}, perhaps because it was made or copied as root: "
        f"`sudo chown -R {os.geteuid()} {path}` gives it to you"
    )


def _close(folder: Path) -> None:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not found.st_mode & 0o077:
        return
    folder.chmod(0o700)
    logger.warning(
        "%s was open to other users of this machine (mode %03o); it is closed now (700)", folder, found.st_mode & 0o777
    )


def append_private(path: Path) -> BinaryIO:
    """``path`` to append to; a file that this creates is its owner's only, whatever the umask."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")
