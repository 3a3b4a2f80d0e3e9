"""A real Postgres of a test's own, which nobody else uses: it can die, or fall silent as a host that is cut off."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from data_bridge.embedded import EmbeddedServer

_FAST = {"fsync": "off", "full_page_writes": "off"}


class OwnPostgres:
    """To be killed, or stopped, and brought back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = EmbeddedServer(folder, options=_FAST)
        self._server.start()
        self.url = self._server.url()

    def kill(self) -> None:
        """No process of it is left, and nobody starts it again."""
        self._signal(signal.SIGKILL)

    def fall_silent(self) -> None:
        """It keeps its connections and takes new ones, and answers none, until it is to ``speak_again``."""
        self._signal(signal.SIGSTOP)

    def speak_again(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        postmaster = psutil.Process(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]))
        for one in [postmaster, *postmaster.children(recursive=True)]:
            os.kill(one.pid, number)

    def bring_back(self) -> None:
        self._server = EmbeddedServer(self.folder, options=_FAST)
        self._server.start()
        self.url = self._server.url()

    def stop(self) -> None:
        self._server.stop()
