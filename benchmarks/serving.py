"""How much batching gains: tokens/s of 32 concurrent clients against one at a time, through the real HTTP server.

    python benchmarks/serving.py [--quick]

The limit is what the machine could do if a batch cost no more than a single row; the ratio shows how close we are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import time
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

HEADLINES = ("wins a record order", "cuts its outlook", "raises its dividend", "loses its largest customer")


async def measure(home: Path, clients: int, tokens: int, *, at_once: bool) -> float:
    """Completion tokens per second."""
    import uvicorn

    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.inference.chat_models import Engine
    from trainer.inference.checkpoints import store_of
    from trainer.serve.app import make_app
    from trainer.serve.checkpoints import ServedCheckpoints

    engine = Engine(model_directory(EMBEDDED, home))
    checkpoints = ServedCheckpoints(home, "hindsight", store_of(home, "hindsight"), engine.model, base_model=EMBEDDED)
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(checkpoints, key=None), log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as openai:

            async def ask(number: int) -> int:
                chat: list[Any] = [
                    {"role": "user", "content": f"News: agent {number} {HEADLINES[number % 4]}. Your view?"}
                ]
                reply = await openai.chat.completions.create(
                    model="hindsight", messages=chat, max_tokens=tokens, temperature=1.0, seed=number
                )
                assert reply.usage is not None
                return reply.usage.completion_tokens

            await ask(0)  # loads the model
            started = time.monotonic()
            if at_once:
                written = sum(await asyncio.gather(*(ask(number) for number in range(clients))))
            else:
                written = sum([await ask(number) for number in range(clients)])
            seconds = time.monotonic() - started
        server.should_exit = True
        await serving
    await engine.close()
    return written / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 clients and 12 tokens")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"))
    options = parser.parse_args()
    clients, tokens = (8, 12) if options.quick else (32, 32)
    one = asyncio.run(measure(options.home, clients, tokens, at_once=False))
    many = asyncio.run(measure(options.home, clients, tokens, at_once=True))
    print(f"one after the other: {one:6.1f} tokens/s")
    print(f"{clients} at once:          {many:6.1f} tokens/s")
    print(f"ratio: {many / one:.2f} (goal: at least 3.00 with 32 clients)")


if __name__ == "__main__":
    main()
