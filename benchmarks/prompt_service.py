"""How long the prompt policy takes to select over HTTP, with a given embedding: one client, one key, a warm service.

    python benchmarks/prompt_service.py [--requests 500]

Starts ``scripts/prompts.py serve`` with a fresh home and the default networks (1536 to 256, 256, 128), asks it and
prints the quantiles; the target is a p95 below 10 ms. The answer of ``/health``, measured in turn, is what HTTP and
this machine take without the policy. At most 590 requests, as one key may make 600 calls a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
KEY = "the-key-of-this-benchmark"


def timed(client: httpx.Client, method: str, path: str, body: bytes | None) -> float:
    started = time.perf_counter()
    answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
    took = time.perf_counter() - started
    answer.raise_for_status()
    return 1000 * took


def cpu_of(pid: int) -> float:
    """Seconds; unlike the time that a request takes, nearly the same on a busy machine."""
    found = psutil.Process(pid).cpu_times()
    return found.user + found.system


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, choices=range(20, 591), metavar="20-590")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hs-") as home:
        command = [sys.executable, str(ROOT / "scripts" / "prompts.py"), "serve", "--json", "--port", "0"]
        environment = {**os.environ, "HINDSIGHT_CONSOLE_KEY": KEY, "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen([*command, "--home", home], env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = next(json.loads(line)["url"] for line in server.stdout if '"ready"' in line)
            draws = np.random.default_rng(0)
            bodies = [
                json.dumps({"embedding": draws.normal(size=1536).tolist()}).encode() for _ in range(options.requests)
            ]
            with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=120) as client:
                for body in bodies[:5]:  # torch is loaded with the first
                    timed(client, "POST", "/select_action", body)
                used = cpu_of(server.pid)
                pairs = [
                    (timed(client, "POST", "/select_action", body), timed(client, "GET", "/health", None))
                    for body in bodies[5:]
                ]
                used = cpu_of(server.pid) - used
        finally:
            server.terminate()
            server.wait()
    for name, times in zip(("select_action", "health"), zip(*pairs, strict=True), strict=True):
        p50, p95, p99 = np.quantile(times, (0.5, 0.95, 0.99))
        print(f"{name:>14}: p50 {p50:.1f} ms, p95 {p95:.1f} ms, p99 {p99:.1f} ms, {len(times)} requests")
    print(f"the service's own CPU time for a selection and a health check: {1000 * used / len(pairs):.1f} ms")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
