"""Ids as the game makes them: decimal snowflakes of 41 bits time, 10 bits worker, 12 bits sequence."""

from __future__ import annotations

import os
import secrets
import threading
import time

_EPOCH_MS = 1_704_067_200_000  # 2024-01-01
_SEQUENCES = 1 << 12


class _Worker:
    """The game's own workers count from 0 upwards; ours draws its number at random from the upper half."""

    def __init__(self) -> None:
        self.number = 512 + secrets.randbelow(512)
        self.lock = threading.Lock()
        self.moment = 0
        self.sequence = 0


_worker = _Worker()


def _draw_anew() -> None:
    global _worker
    _worker = _Worker()


os.register_at_fork(after_in_child=_draw_anew)


def snowflake_id() -> str:
    """An id that never repeats within a process, and hardly ever between processes: the unique index decides."""
    worker = _worker
    with worker.lock:
        worker.moment = max(worker.moment, time.time_ns() // 1_000_000 - _EPOCH_MS)
        worker.sequence += 1
        if worker.sequence == _SEQUENCES:
            # More than 4,096 in a millisecond: borrow from the next one rather than wait.
            worker.sequence, worker.moment = 0, worker.moment + 1
        return str(worker.moment << 22 | worker.number << 12 | worker.sequence)
