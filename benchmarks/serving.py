"""How the real HTTP server does with many agents. Two measurements, each a ratio within one run:

    python benchmarks/serving.py [--quick]
    python benchmarks/serving.py --engines 2 [--quick]

The first: what batching gains, as tokens/s of 32 concurrent requests against one at a time. The limit is what the
machine could do if a batch cost no more than a single row; the ratio shows how close we are.

The second: 128 agents at one endpoint over several engine processes, as 8 client processes against a single one. Both
are measured on the same engines, in the order one, eight, eight, one, twice, so that a machine that grows busier counts
for both. Tokens per CPU-second of the server and its engines tell them apart from what else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, OpenAIError

if TYPE_CHECKING:
    from trainer.serve.checkpoints import ServedCheckpoints

HEADLINES = ("wins a record order", "cuts its outlook", "raises its dividend", "loses its largest customer")
AGENTS, CLIENTS = 128, 8


async def ask(openai: AsyncOpenAI, number: int, tokens: int) -> int:
    """How many tokens agent ``number`` was answered with."""
    chat: list[Any] = [{"role": "user", "content": f"News: agent {number} {HEADLINES[number % 4]}. Your view?"}]
    reply = await openai.chat.completions.create(
        model="hindsight", messages=chat, max_tokens=tokens, temperature=1.0, seed=number
    )
    assert reply.usage is not None
    return reply.usage.completion_tokens


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)


@contextlib.asynccontextmanager
async def endpoint(checkpoints: ServedCheckpoints) -> AsyncIterator[str]:
    import uvicorn

    from trainer.serve.app import make_app

    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(checkpoints, key=None), log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        await serving


async def measure(home: Path, clients: int, tokens: int, *, at_once: bool) -> float:
    """Completion tokens per second."""
    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.inference.chat_models import Engine
    from trainer.inference.checkpoints import store_of
    from trainer.serve.checkpoints import ServedCheckpoints

    engine = Engine(model_directory(EMBEDDED, home))
    checkpoints = ServedCheckpoints(home, "hindsight", store_of(home, "hindsight"), engine.model, base_model=EMBEDDED)
    async with endpoint(checkpoints) as url, client(url) as openai:
        await ask(openai, 0, tokens)  # loads the model
        started = time.monotonic()
        if at_once:
            written = sum(await asyncio.gather(*(ask(openai, number, tokens) for number in range(clients))))
        else:
            written = sum([await ask(openai, number, tokens) for number in range(clients)])
        seconds = time.monotonic() - started
    await engine.close()
    return written / seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """What one client process did, by the clock that all processes share."""

    began: float
    ended: float
    written: int
    errors: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


_all_ready: Barrier


def _prepare(barrier: Barrier) -> None:
    global _all_ready  # the only way to hand a barrier to the processes of a pool
    _all_ready = barrier


def ask_as_client(url: str, agents: range, tokens: int) -> Asked:
    """Ask once for each of ``agents``, all at once, when every client process is ready."""

    async def ask_all() -> Asked:
        async with client(url) as openai:
            await openai.models.list()  # what a client sets up once is not what is measured
            _all_ready.wait(timeout=300)
            began = time.monotonic()
            answers = await asyncio.gather(*(ask(openai, one, tokens) for one in agents), return_exceptions=True)
            ended = time.monotonic()
        unexpected = [one for one in answers if isinstance(one, BaseException) and not isinstance(one, OpenAIError)]
        if unexpected:
            raise unexpected[0]
        written = [one for one in answers if isinstance(one, int)]
        return Asked(began, ended, sum(written), len(answers) - len(written))

    return asyncio.run(ask_all())


async def by_clients(url: str, number: int, tokens: int) -> Asked:
    """All agents, shared among ``number`` client processes."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, spawn, initializer=_prepare, initargs=(spawn.Barrier(number),)) as pool:
        loop = asyncio.get_running_loop()
        shares = [range(first, AGENTS, number) for first in range(number)]
        asked = await asyncio.gather(
            *(loop.run_in_executor(pool, ask_as_client, url, share, tokens) for share in shares)
        )
    return Asked(
        min(one.began for one in asked),
        max(one.ended for one in asked),
        sum(one.written for one in asked),
        sum(one.errors for one in asked),
    )


def cpu_seconds(processes: Iterable[int]) -> float:
    """What this process and ``processes`` have used so far."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def compare_clients(home: Path, engines: int, tokens: int) -> None:
    from trainer.config.training import EngineSettings
    from trainer.inference.base_model import EMBEDDED
    from trainer.inference.checkpoints import store_of
    from trainer.serve.checkpoints import ServedCheckpoints
    from trainer.serve.engines import open_engines

    runs: list[tuple[int, Asked, float]] = []
    async with open_engines(EngineSettings(base_model=EMBEDDED), home, engines) as shared:
        stored = store_of(home, "hindsight")
        checkpoints = ServedCheckpoints(
            home, "hindsight", stored, shared.model, base_model=EMBEDDED, take_up=shared.take_up
        )
        async with endpoint(checkpoints) as url:
            await by_clients(url, 1, 1)  # every prompt has been read once
            for number in (1, CLIENTS, CLIENTS, 1) * 2:
                before = cpu_seconds(shared.loads)
                run = await by_clients(url, number, tokens)
                runs.append((number, run, cpu_seconds(shared.loads) - before))
    for number, run, cpu in runs:
        print(
            f"{AGENTS} agents, {number} client(s): {run.written / run.seconds:6.1f} tokens/s, "
            f"{run.written / cpu:6.1f} per CPU-second, {run.errors} errors"
        )
    by_time = [_speed([(run.written, run.seconds) for own, run, _ in runs if own == n]) for n in (1, CLIENTS)]
    by_cpu = [_speed([(run.written, cpu) for own, run, cpu in runs if own == n]) for n in (1, CLIENTS)]
    print(
        f"{CLIENTS} clients / one client over {engines} engines: {by_time[1] / by_time[0]:.2f} by the clock, "
        f"{by_cpu[1] / by_cpu[0]:.2f} by CPU time (goal: at least 0.95, no errors)"
    )


def _speed(runs: Sequence[tuple[int, float]]) -> float:
    return sum(written for written, _ in runs) / sum(seconds for _, seconds in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 requests and 12 tokens; with --engines, 8 tokens")
    parser.add_argument("--engines", type=int, help="measure clients over so many engine processes instead")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"))
    options = parser.parse_args()
    if options.engines is not None:
        asyncio.run(compare_clients(options.home, options.engines, 8 if options.quick else 32))
        return
    clients, tokens = (8, 12) if options.quick else (32, 32)
    one = asyncio.run(measure(options.home, clients, tokens, at_once=False))
    many = asyncio.run(measure(options.home, clients, tokens, at_once=True))
    print(f"one after the other: {one:6.1f} tokens/s")
    print(f"{clients} at once:          {many:6.1f} tokens/s")
    print(f"ratio: {many / one:.2f} (goal: at least 3.00 with 32 clients)")


if __name__ == "__main__":
    main()
