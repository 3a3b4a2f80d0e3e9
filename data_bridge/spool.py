"""A queue on disk: appended records survive ``kill -9`` and power cuts, and are taken out in order.

A spool is a folder of segments. Each segment belongs to the one process that holds its file lock. The kernel releases
the lock when the process dies, and any other process can then adopt the segment. Each record is stored with its
length and a checksum, so that a torn tail, whose ``append`` never returned, is recognised and left out.

Appends share their fsync: while one is running the next ones queue up, so that a hundred writers cost little more than
one. Single records are not marked as done: if a consumer dies between ``take`` and ``done``, the next one gets the
same records again. Consumers must therefore be idempotent.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import time
import uuid
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from data_bridge.disk import told_if_full
from data_bridge.private_files import make_private

logger = logging.getLogger(__name__)

_FRAME = struct.Struct("<II")  # length, CRC-32
_SUFFIX = ".spool"
_SEGMENT_BYTES = 16 * 2**20
"""A segment larger than this is closed, so that the disk space of finished records can be freed."""


@dataclass(slots=True)
class _Segment:
    path: Path
    handle: int
    size: int
    """How many bytes are known to be on disk."""
    taken: int = 0
    is_active: bool = False
    is_adopted: bool = False
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """Records in order, to be confirmed with ``done``."""

    records: list[bytes]
    segment: _Segment
    end: int


class Spool:
    """The spool in ``folder``, with a segment of our own to append to. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        with told_if_full(folder):
            make_private(folder)
        self.folder = folder
        self._segments: deque[_Segment] = deque()
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None
        self.arrived = asyncio.Event()
        """Set whenever there may be something to take."""
        self.appended = 0
        """Total records of ours written to disk; the first ``finished`` of them are done."""
        self.finished = 0

    async def append(self, record: bytes) -> None:
        """Returns when ``record`` is on disk; OSError if it cannot be written (for example, the disk is full)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((_FRAME.pack(len(record), zlib.crc32(record)) + record, future))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit(), name="spool-commit")
        await future

    def take(self, max_records: int, max_bytes: int) -> Taken | None:
        """The next records, or None if there are none for now. Call ``done`` before the next ``take``."""
        while self._segments:
            segment = self._segments[0]
            records, end = _read(segment, max_records, max_bytes)
            if records:
                return Taken(records, segment, end)
            if segment.is_active:
                return None
            self._segments.popleft()
            _remove(segment)
        return None

    def done(self, taken: Taken) -> None:
        """Once a whole segment is done, no process gets its records again."""
        taken.segment.taken = taken.end
        if not taken.segment.is_adopted:
            self.finished += len(taken.records)

    @property
    def is_empty(self) -> bool:
        return not self._pending and all(segment.taken >= segment.size for segment in self._segments)

    def adopt(self) -> int:
        """Take over the segments of dead processes, the oldest first; returns how many."""
        own = {segment.path for segment in self._segments}
        orphans = [path for path in sorted(self.folder.glob(f"*{_SUFFIX}")) if path not in own]
        adopted = [segment for path in orphans if (segment := _claim(path)) is not None]
        self._segments.extendleft(reversed(adopted))
        if adopted:
            logger.info("taking over %d spool segment%s in %s", len(adopted), "s"[: len(adopted) > 1], self.folder)
            self.arrived.set()
        return len(adopted)

    async def close(self) -> None:
        """Release the files; records that are not done stay on disk for the next process."""
        while self._committing is not None:
            await asyncio.wait([self._committing])
        for segment in self._segments:
            if segment.taken >= segment.size:
                _remove(segment)
            else:
                os.close(segment.handle)
        self._segments.clear()

    async def _commit(self) -> None:
        try:
            while self._pending:
                gathered, self._pending = self._pending, []
                frames = b"".join(frame for frame, _ in gathered)
                try:
                    with told_if_full(self.folder):
                        await asyncio.to_thread(_write, self._active(), frames)
                except OSError as error:
                    for _, future in gathered:
                        if not future.done():
                            future.set_exception(error)
                else:
                    self.appended += len(gathered)
                    for _, future in gathered:
                        if not future.done():
                            future.set_result(None)
                    self.arrived.set()
        finally:
            self._committing = None

    def _active(self) -> _Segment:
        if self._segments and self._segments[-1].is_active:
            segment = self._segments[-1]
            if segment.size < _SEGMENT_BYTES:
                return segment
            segment.is_active = False
        self._segments.append(_create(self.folder))
        return self._segments[-1]


def _create(folder: Path) -> _Segment:
    path = folder / f"{time.time_ns()}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
    unnamed = path.with_suffix(".new")
    handle = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    unnamed.rename(path)  # renamed only after locking, so that no other process can adopt it
    fsync(folder)
    return _Segment(path, handle, size=0, is_active=True)


def _write(segment: _Segment, frames: bytes) -> None:
    view, at = memoryview(frames), segment.size
    try:
        while view:
            written = os.pwrite(segment.handle, view, at)
            view, at = view[written:], at + written
        os.fdatasync(segment.handle)
    except OSError:
        os.ftruncate(segment.handle, segment.size)
        raise
    segment.size = at


def _read(segment: _Segment, max_records: int, max_bytes: int) -> tuple[list[bytes], int]:
    """The complete, undamaged records that were not taken yet, and where they end."""
    records: list[bytes] = []
    at = segment.taken
    while len(records) < max_records and at - segment.taken < max_bytes and at < segment.size:
        head = os.pread(segment.handle, _FRAME.size, at)
        length, checksum = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, 0)
        record = os.pread(segment.handle, length, at + _FRAME.size)
        if not record or len(record) != length or zlib.crc32(record) != checksum:
            segment.is_damaged = 0 < length < segment.size - at - _FRAME.size
            segment.size = at
            break
        records.append(record)
        at += _FRAME.size + length
    return records, at


def _claim(path: Path) -> _Segment | None:
    """The segment at ``path`` if no running process owns it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):  # finished in the meantime, or another user's
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    status = os.fstat(handle)
    if status.st_nlink == 0:  # its owner finished and removed it while we opened it
        os.close(handle)
        return None
    return _Segment(path, handle, status.st_size, is_adopted=True)


def _remove(segment: _Segment) -> None:
    """Delete the segment, with a torn tail too, which was never acknowledged. Damage before the end is kept aside."""
    if segment.is_damaged:
        kept = segment.path.rename(segment.path.with_suffix(".damaged"))
        logger.error("%s is damaged after byte %d: the rest was not read", kept, segment.size)
    else:
        segment.path.unlink(missing_ok=True)
    os.close(segment.handle)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, from the cache to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
