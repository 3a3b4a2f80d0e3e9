"""Several engines answer as one does, lose no request when one is killed or a promotion comes, and end with us."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from openai import APIError

from data_bridge.errors import ConfigurationError
from data_bridge.models import ChatMessage
from tests.integration.test_serving import ASK, client, listening_for, save_adapter
from tests.tiny_model import shared_tiny_model
from trainer.inference.chat_models import Engine
from trainer.inference.checkpoints import store_of
from trainer.inference.request import PromptRefused
from trainer.ledger.releases import Pointer, Promotion, pointer_file
from trainer.ledger.states import PromotionKind, PromotionState
from trainer.serve import engine_child
from trainer.serve import engines as engines_module
from trainer.serve.app import make_app
from trainer.serve.checkpoints import ServedCheckpoints, StreamingModel
from trainer.serve.engine_child import EngineChild, EngineLost
from trainer.serve.engines import Engines, shares_of
from trainer.types import Checkpoint, Completion

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
SAID = [ChatMessage("user", "$COIN 100.00\nNews: $COIN wins a record order")]
LONG = 200
"""Tokens of a reply that is still being written when something happens to its engine."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tiny: Path) -> AsyncIterator[Engines]:
    engines = Engines(tiny, [1, 1])
    try:
        await engines.start()
        yield engines
    finally:
        await engines.close()


@asynccontextmanager
async def served(engines: Engines, base: Path, home: Path) -> AsyncIterator[str]:
    stored = store_of(home, "hindsight")
    checkpoints = ServedCheckpoints(
        home, "hindsight", stored, engines.model, base_model=str(base), take_up=engines.take_up
    )
    async with listening_for(make_app(checkpoints, key=None)) as url:
        yield url


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_the_replies_are_those_of_one_engine(two: Engines, tiny: Path) -> None:
    alone = Engine(tiny, threads=1)

    async def streamed(model: StreamingModel, seed: int) -> tuple[list[Completion], list[tuple[int, str]]]:
        told: list[tuple[int, str]] = []
        replies = await model.chat(SAID, n=3, max_tokens=12, seed=seed, on_text=lambda *grown: told.append(grown))
        return replies, told

    try:
        for seed in (3, 2**70):
            replies, told = await streamed(alone.model(None, "base"), seed)
            shared, told_by_two = await streamed(two.model(None, "base"), seed)
            assert [replace(one, logprobs=()) for one in shared] == [replace(one, logprobs=()) for one in replies]
            for one, other in zip(replies, shared, strict=True):
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert told_by_two == told != []
    finally:
        await alone.close()


async def test_what_the_model_refuses_is_the_clients_fault_as_with_one_engine(two: Engines) -> None:
    with pytest.raises(PromptRefused, match="shorten the prompt"):
        await two.model(None, "base").chat([ChatMessage("user", "word " * 5000)])


async def test_the_least_loaded_engine_is_asked_and_an_unwanted_reply_is_given_up(two: Engines) -> None:
    model = two.model(None, "base")
    asked = [asyncio.create_task(model.chat(SAID, n=number, max_tokens=2_000)) for number in (3, 1, 1, 1, 2)]
    await asyncio.sleep(0)  # each has been given to an engine
    assert sorted(two.loads.values()) == [3, 5]
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(two.loads.values()) == [0, 0]
    await model.chat(SAID, max_tokens=1)


async def test_an_engine_that_is_killed_loses_no_request_and_is_replaced(
    two: Engines, tiny: Path, tmp_path: Path
) -> None:
    before = set(two.loads)
    async with served(two, tiny, tmp_path) as url, client(url) as openai:

        async def stream(number: int, begun: asyncio.Event) -> str:
            answer: Any = await openai.chat.completions.create(
                model="hindsight", messages=ASK, max_tokens=3 * LONG, seed=number, stream=True
            )
            try:
                async for chunk in answer:
                    if chunk.choices and chunk.choices[0].delta.content:
                        begun.set()
            except APIError as error:
                return str(error)
            return "whole"

        async def ask(number: int) -> int:
            reply = await openai.chat.completions.create(
                model="hindsight", messages=ASK, max_tokens=LONG, seed=number, n=2
            )
            assert reply.usage is not None
            return reply.usage.completion_tokens

        begun = [asyncio.Event(), asyncio.Event()]
        async with asyncio.timeout(120):
            streams = [asyncio.create_task(stream(number, event)) for number, event in enumerate(begun)]
            await asyncio.gather(*(event.wait() for event in begun))
            replies = [asyncio.create_task(ask(number)) for number in range(6)]
            await until(lambda: sum(two.loads.values()) == 14)
            lost = max(two.loads)
            os.kill(lost, signal.SIGKILL)
            assert await asyncio.gather(*replies) == [2 * LONG] * 6
            ends = await asyncio.gather(*streams)
    assert sorted(ends) == ["The engine that wrote this reply is gone; retry.", "whole"]
    await until(lambda: len(two.loads) == 2)
    assert len(before & set(two.loads)) == 1
    assert lost not in two.loads


def promote(home: Path, base: Path, step: int, location: Path) -> None:
    """As ``promote.py`` leaves it in the pointer's file."""
    now = datetime.now(UTC)
    promotion = Promotion(
        step,
        Checkpoint("hindsight", step, str(base), "cpu", str(location)),
        PromotionKind.PROMOTION,
        PromotionState.SERVING,
        forced=False,
        reason="better",
        outcome=None,
        evaluation_id=None,
        base_url="http://127.0.0.1:8808/v1",
        served_model=f"hindsight@step{step}",
        canary_share=None,
        canary_after=None,
        created_at=now,
        serving_since=now,
        ended_at=None,
    )
    path = pointer_file(home, "hindsight")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(Pointer("hindsight", promotion)))
    temporary.rename(path)


async def test_a_promotion_drains_one_engine_after_the_other_and_drops_no_request(
    two: Engines, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = save_adapter(store_of(tmp_path, "hindsight"), tiny, 1)
    drained: list[tuple[int, int, int]] = []
    finish = EngineChild.finish

    async def noted(engine: EngineChild, seconds: float) -> None:
        had = engine.load
        await finish(engine, seconds)
        drained.append((had, engine.load, sum(one.is_draining for one in two._running)))

    monkeypatch.setattr(EngineChild, "finish", noted)
    monkeypatch.setattr(engines_module, "DRAINING", 120.0)
    seen: list[str] = []
    stop = asyncio.Event()
    async with asyncio.timeout(240), served(two, tiny, tmp_path) as url, client(url) as openai:

        async def agent() -> None:
            while not stop.is_set():
                reply = await openai.chat.completions.create(model="hindsight", messages=ASK, max_tokens=40)
                seen.append(reply.model)

        begun = [
            asyncio.create_task(openai.chat.completions.create(model="hindsight", messages=ASK, max_tokens=LONG))
            for _ in range(2)
        ]
        await until(lambda: sorted(two.loads.values()) == [1, 1])
        async with asyncio.TaskGroup() as agents:
            for _ in range(4):
                agents.create_task(agent())
            await until(lambda: len(seen) > 4)
            promote(tmp_path, tiny, 1, location)
            await until(lambda: len(drained) == 2 and seen[-1] == "hindsight@step1")
            stop.set()
        assert [(await one).model for one in begun] == ["hindsight@step0"] * 2
    switched = seen.index("hindsight@step1")
    assert set(seen[:switched]) == {"hindsight@step0"}
    assert [(after, draining) for _, after, draining in drained] == [(0, 1), (0, 1)]
    assert drained[0][0] > 0


async def test_an_engine_that_is_silent_counts_as_gone_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    sleeper = await asyncio.to_thread(subprocess.Popen, ["sleep", "600"])
    monkeypatch.setattr(engine_child, "start_child", lambda module, *, threads: (sleeper, ours))
    monkeypatch.setattr(engine_child, "SILENCE", 0.1)
    with theirs, pytest.raises(EngineLost):
        await EngineChild.started(tmp_path, 1)
    assert sleeper.returncode == -signal.SIGKILL


async def test_the_engines_hold_no_secret_and_end_when_the_server_is_killed(tiny: Path, tmp_path: Path) -> None:
    options = ["--home", str(tmp_path), "--base-model", str(tiny), "--port", "0", "--engines", "2", "--threads", "2"]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "scripts/serve.py", *options),
        cwd=ROOT,
        env=os.environ | {"HINDSIGHT_SERVE_KEY": "a-secret"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        line = (await asyncio.wait_for(server.stdout.readline(), 180)).decode()
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert len(children) == 2
        for child in children:
            told = Path(f"/proc/{child}/environ").read_bytes() + Path(f"/proc/{child}/cmdline").read_bytes()
            assert b"a-secret" not in told
            assert b"OMP_NUM_THREADS=1\0" in told
        url = line.split(" at ")[1].strip().removesuffix("/v1")
        async with client(url, "a-secret") as openai:
            reply = await openai.chat.completions.create(model="hindsight", messages=ASK, max_tokens=2)
        assert reply.model == "hindsight@step0"
    finally:
        server.kill()
        await asyncio.wait_for(server.wait(), 30)
    await until(lambda: not any(is_running(child) for child in children))


def is_running(process: str) -> bool:
    """Not so for a zombie, which nobody may be there to bury."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    engines = Engines(tmp_path, [1])
    try:
        with pytest.raises(ConfigurationError, match="tokenizer"):
            await engines.start()
    finally:
        await engines.close()


async def test_threads_are_divided_among_the_engines() -> None:
    assert shares_of(5, 2) == [3, 2]
    assert shares_of(1, 2) == [1, 1]
    assert sum(shares_of(0, 1)) == (os.cpu_count() or 1)
