"""How soon the console serves its first page, and what open streams cost: ``python benchmarks/console_start.py``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parents[1]
STARTS = 5
STREAMS = 200


def start(home: Path, url: str) -> tuple[subprocess.Popen[str], str]:
    """A console on an embedded database, once it says that it answers."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "console.py"), "--home", str(home), "--port", "0", "--no-train-here"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": url},
    )
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"(http://\S+)/login\?code=", line)
        if found:
            return process, found[1]
    raise SystemExit(f"the console ended with {process.wait()}")


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        home, server = Path(folder) / "home", EmbeddedServer(Path(folder) / "postgres")
        server.start()
        database = server.url()
        process, _ = start(home, database)  # makes the tables and the keys
        process.terminate()
        process.wait()
        seconds = []
        for _ in range(STARTS):
            began = time.monotonic()
            process, url = start(home, database)
            assert httpx.get(f"{url}/login").status_code == 200
            seconds.append(time.monotonic() - began)
            process.terminate()
            process.wait()
        print(f"first page after {min(seconds):.2f} to {max(seconds):.2f} s ({STARTS} starts)")

        process, url = start(home, database)
        key = json.loads((home / "console" / "keys.json").read_text())["read"]
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, limits=httpx.Limits(max_connections=None)) as client:
            client.get("/api/v1/training/status").raise_for_status()
            before = psutil.Process(process.pid).memory_info().rss
            streams = [client.send(client.build_request("GET", "/api/v1/events"), stream=True) for _ in range(STREAMS)]
            grown = psutil.Process(process.pid).memory_info().rss - before
            print(f"{STREAMS} open streams: {grown / 1e6:.1f} MB")
            for stream in streams:
                stream.close()
        process.terminate()
        process.wait()
        server.stop()


if __name__ == "__main__":
    main()
