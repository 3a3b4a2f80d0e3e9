"""Places the workers of one job with Ray: on this machine, or on a cluster that runs already.

A process of its own, started by ``elsewhere``: whatever happens to Ray's daemons, and to the client in this process,
the driver only sees that it ended. Ray places and watches processes; it never retries work (``max_retries=0``), because
a task may run twice and only the ledger can tell. It ends with its driver, when its standard input closes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

# With Ray's own defaults, a host whose link was cut was noticed after 421 s, or not at all; with these after 12.9 s.
NETWORK = {
    "RAY_grpc_keepalive_time_ms": "5000",
    "RAY_grpc_keepalive_timeout_ms": "5000",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
PRIVATE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}
"""Nothing is reported to anybody, and no token is written into the home of the user: Ray listens on loopback only.
A cluster that others can reach needs a token (RAY_AUTH_MODE=token), which overrides this."""

_LOOPBACK = "127.0.0.1"
_LOOK_EVERY = 1.0
_PAUSE_BEFORE_REPLACING = 0.5


@dataclass(frozen=True, slots=True)
class Placement:
    """What the driver wants."""

    job_id: str
    workers: int
    secrets_path: str
    address: str
    """Empty: a Ray of our own on this machine."""


class RayWorker:
    """The process that Ray starts. Its only arguments are names: of the job, and of the file with its secrets."""

    def run(self, job_id: str, place: int, secrets_path: str) -> None:
        from trainer.workers.worker import work  # only here: whoever places workers does not pay for what they import

        logging.basicConfig(level=logging.WARNING)
        asyncio.run(work(job_id, place, secrets_path))


def place(wanted: Placement) -> None:
    """Keep ``wanted.workers`` workers running until the driver closes our standard input."""
    for name, value in (NETWORK | PRIVATE).items():
        os.environ.setdefault(name, value)
    import ray
    from ray._private import ray_constants

    driver_gone = threading.Event()
    threading.Thread(target=_wait_for_end, args=(driver_gone,), daemon=True, name="watch the driver").start()
    # Ray's own switch for a node that others cannot reach.
    ray_constants.ENABLE_RAY_CLUSTER = bool(wanted.address) and not wanted.address.startswith("127.")
    if wanted.address:
        ray.init(address=wanted.address, log_to_driver=False, logging_level=logging.WARNING)
    else:
        ray.init(
            num_cpus=wanted.workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            _node_ip_address=_LOOPBACK,
            object_store_memory=80_000_000,  # nothing passes through it: results are in the ledger
        )
    try:
        _keep(ray, wanted, driver_gone)
    finally:
        ray.shutdown()


def _keep(ray: Any, wanted: Placement, driver_gone: threading.Event) -> None:
    """Start the workers and replace those that die; one that ends by itself has been told that the job is over."""
    kind = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, max_concurrency=1)(RayWorker)
    at_work: dict[Any, tuple[int, Any]] = {}

    def start(number: int) -> None:
        actor = kind.remote()
        at_work[actor.run.remote(wanted.job_id, number, wanted.secrets_path)] = (number, actor)

    for number in range(wanted.workers):
        start(number)
    while at_work and not driver_gone.is_set():
        ended, _ = ray.wait(list(at_work), timeout=_LOOK_EVERY)
        for one in ended:
            number, _ = at_work.pop(one)
            try:
                ray.get(one)
            except ray.exceptions.RayActorError as error:
                logger.warning("worker %d died and is replaced: %s", number, type(error).__name__)
                driver_gone.wait(_PAUSE_BEFORE_REPLACING)
                start(number)


def _wait_for_end(driver_gone: threading.Event) -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock this thread would still hold when the process ends
        pass
    driver_gone.set()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname).1s %(name)s: %(message)s")
    job_id, workers, secrets_path, address = sys.argv[1:]
    place(Placement(job_id, int(workers), secrets_path, address))


if __name__ == "__main__":
    main()
