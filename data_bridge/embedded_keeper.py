"""Stops an embedded Postgres whose last user was killed: started beside the server, it waits for the users' lock."""

from __future__ import annotations

import sys
from pathlib import Path

from data_bridge.embedded import EmbeddedServer


def main(folder: Path) -> None:
    server = EmbeddedServer(folder)
    while True:
        server.wait_until_unused()
        if server.stop_unused():
            return
        # Somebody came in between: it is theirs now, and ours to wait for again.


if __name__ == "__main__":
    main(Path(sys.argv[1]))
