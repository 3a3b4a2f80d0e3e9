"""A Ray that outlives the commands that use it: one start for many jobs, reachable from this machine only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CODE = """
import os
import sys
from ray._private import ray_constants
from trainer.workers.ray_cluster import NETWORK, PRIVATE
os.environ.update(NETWORK | PRIVATE)
import ray
ray_constants.ENABLE_RAY_CLUSTER = False
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    pid: int
    """Of the process whose children its processes are."""


@contextmanager
def running_cluster(environ: dict[str, str] | None = None) -> Iterator[Cluster]:
    process = subprocess.Popen(
        [sys.executable, "-c", _CODE],
        env={**os.environ, **(environ or {}), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address.startswith("127.0.0.1:"), "reachable from this machine only"
    try:
        yield Cluster(address, process.pid)
    finally:
        process.stdin.close()
        process.wait(30)
