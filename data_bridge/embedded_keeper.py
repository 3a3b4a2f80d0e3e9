"""Stops an embedded Postgres whose last user was killed. Started beside the server, it ends with it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from data_bridge.embedded import EmbeddedServer

_SECONDS = 0.25
"""Between two looks. Not a wait for the users' lock, which its last user would then find taken."""


def main(folder: Path) -> None:
    server = EmbeddedServer(folder)
    while not server.stop_unused():
        time.sleep(_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
