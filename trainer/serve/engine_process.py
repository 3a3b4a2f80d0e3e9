"""One engine of ``serve.py --engines N``: a process that runs the model for the server and knows nothing else.

It reads requests from the server's socket and writes the replies to it. It has no settings, no key and no database,
and it ends with the server, however that ends.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from data_bridge.child_environment import end_with_parent, sendable
from trainer.inference.chat_models import Engine
from trainer.serve.engine_orders import (
    Answer,
    AnswerThis,
    LoadBase,
    StillHere,
    TextSoFar,
    Withdraw,
    framed,
    next_message,
)

SAID_EVERY = 5.0
"""Seconds between two signs of life."""


class AnsweringEngine:
    """Answers every request that arrives, all at once, until the server is gone."""

    def __init__(self, engine: Engine, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._answering: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while True:
            match await next_message(reader):
                case AnswerThis() as asked:
                    task = asyncio.create_task(self._answer(asked), name=f"request {asked.number}")
                    self._answering[asked.number] = task
                case Withdraw(number):
                    if (withdrawn := self._answering.get(number)) is not None:
                        withdrawn.cancel()

    async def say_that_we_are_here(self) -> None:
        while True:
            self._say(StillHere())
            await asyncio.sleep(SAID_EVERY)

    async def _answer(self, asked: AnswerThis) -> None:
        request = asked.request

        def tell(reply: int, text: str) -> None:
            self._say(TextSoFar(asked.number, reply, text))

        try:
            answer = Answer(
                asked.number,
                await self._engine.model(request.adapter, request.model_name).chat(
                    request.messages,
                    n=request.samples,
                    temperature=request.temperature,
                    max_tokens=request.max_tokens,
                    stop=request.stop,
                    seed=request.seed,
                    on_text=tell if request.is_streamed else None,
                ),
            )
        except Exception as error:
            answer = Answer(asked.number, sendable(error))
        finally:
            self._answering.pop(asked.number, None)
        self._say(answer)

    def _say(self, message: object) -> None:
        self._writer.write(framed(message))


async def answer(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    first = await next_message(reader)
    assert isinstance(first, LoadBase)
    answering = AnsweringEngine(Engine(first.base, threads=first.threads), writer)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answering.say_that_we_are_here(), name="signs of life")
        tasks.create_task(answering.serve(reader), name="requests")


def main() -> int:
    end_with_parent()
    try:
        asyncio.run(answer(socket.socket(fileno=int(sys.argv[1]))))
    except* (asyncio.IncompleteReadError, OSError):
        pass  # the server is gone, or wants this engine no more
    os._exit(0)  # without waiting for the engine's thread, which may be in the middle of a long reply


if __name__ == "__main__":
    sys.exit(main())
