"""The process of a rank (``rank``): it says that it is there from its first moment on, before it imports torch.

A thread sends a heartbeat every second, also in the middle of a long share. It stops with the process, so that the
first rank can tell one that computes from one that was stopped.
"""

from __future__ import annotations

import sys
import threading
import time
from multiprocessing.connection import Connection

from data_bridge.child_environment import end_with_parent

BEAT = 1.0


def main() -> int:
    end_with_parent()
    connection, sending = Connection(int(sys.argv[1])), threading.Lock()
    threading.Thread(target=_beat, args=(connection, sending), daemon=True).start()
    from trainer.train.backends.rank import serve

    serve(connection, sending)
    return 0


def _beat(connection: Connection, sending: threading.Lock) -> None:
    """An empty message: no answer is one. While nobody reads, the next waits, and an answer after it."""
    while True:
        time.sleep(BEAT)
        try:
            with sending:
                connection.send_bytes(b"")
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main())
