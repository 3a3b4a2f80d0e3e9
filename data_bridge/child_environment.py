"""A process that runs a model for us: its start, its environment without a secret, its end with ours, its errors."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time

_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")


def child_environment(*, threads: int = 1) -> dict[str, str]:
    """No secrets: a list of what is kept, not of what is left out, since a key may have any name."""
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {
        **own,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def start_child(module: str, *, threads: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that runs ``module`` with one end of a pair of sockets, whose number it is told, and our end."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment(threads=threads),
            start_new_session=True,  # a Ctrl-C is for whoever started us
        )
    return process, ours


def end_with_parent() -> None:
    """In the child: end within a second after the parent, also in the middle of long work."""
    threading.Thread(target=_end_after, args=(os.getppid(),), daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def sendable(error: Exception) -> Exception:
    """``error``, or what can be pickled of it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error of another library whose arguments cannot be sent: its class says what it was
        return RuntimeError(type(error).__name__)
    return error
