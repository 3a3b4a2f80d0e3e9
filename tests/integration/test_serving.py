"""The server keeps OpenAI's contract, follows promotions under load, and cannot be taken down by a request."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import (
    APIError,
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
)
from starlette.applications import Starlette

from data_bridge.database import Database
from tests.builders_promotion import insert_checkpoint
from tests.tiny_model import shared_tiny_model
from trainer.inference.chat_models import Engine
from trainer.inference.checkpoints import CheckpointStore, StoredStep, store_of
from trainer.promote.publish import publish, roll_back
from trainer.serve.app import make_app
from trainer.serve.checkpoints import OnText, ServedCheckpoints
from trainer.types import Completion, Serving

KEY = "serve-key-for-tests"
ASK: list[Any] = [{"role": "user", "content": "$COIN 100.00\nNews: $COIN wins a record order"}]

IMAGE: list[Any] = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


def save_adapter(store: CheckpointStore, base: Path, step: int) -> Path:
    """A checkpoint whose adapter changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(step)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    return store.save(StoredStep(step, f"batch-{step}", 1, str(base)), lambda path: model.save_pretrained(path))


@asynccontextmanager
async def served(tiny: Path, home: Path, **options: Any) -> AsyncIterator[str]:
    """The server on the tiny model; yields its base URL."""
    engine = Engine(tiny, threads=1)
    checkpoints = ServedCheckpoints(home, "hindsight", store_of(home, "hindsight"), engine.model, base_model=str(tiny))
    try:
        async with listening_for(make_app(checkpoints, key=options.pop("key", None), **options)) as url:
            yield url
    finally:
        await engine.close()


@asynccontextmanager
async def listening_for(app: Starlette) -> AsyncIterator[str]:
    """``app`` on a real socket."""
    import uvicorn

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def client(url: str, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def test_the_unmodified_openai_client_gets_replies_tokens_and_logprobs(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    async with served(tiny, tmp_path) as url, client(url) as openai:
        reply = await openai.chat.completions.create(
            model="hindsight", messages=ASK, n=3, max_tokens=5, logprobs=True, temperature=1.0, seed=7
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(tiny)
        assert reply.model == "hindsight@step0"
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        for choice in reply.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.content
            assert all(entry.logprob <= 0 for entry in choice.logprobs.content)
            assert choice.finish_reason in ("stop", "length")
            ids = (choice.model_extra or {})["token_ids"]
            assert [entry.token for entry in choice.logprobs.content] == [tokenizer.decode([id_]) for id_ in ids]
        assert reply.usage is not None
        tokens = sum(len(choice.logprobs.content or []) for choice in reply.choices if choice.logprobs)
        assert reply.usage.completion_tokens == tokens
        assert reply.usage.prompt_tokens > 10


async def test_tokens_are_named_by_their_ids_for_who_asks_as_of_vllm(tiny: Path, tmp_path: Path) -> None:
    async with served(tiny, tmp_path) as url, client(url) as openai:
        reply = await openai.chat.completions.create(
            model="hindsight",
            messages=ASK,
            max_tokens=3,
            logprobs=True,
            extra_body={"return_tokens_as_token_ids": True},
        )
    [choice] = reply.choices
    assert choice.logprobs is not None
    named = [entry.token for entry in choice.logprobs.content or []]
    assert named == [f"token_id:{token}" for token in (choice.model_extra or {})["token_ids"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_come_without_logprobs_for_who_asks_as_of_vllm(
    tiny: Path, tmp_path: Path, stream: bool
) -> None:
    asked: Any = {"model": "hindsight", "messages": ASK, "max_tokens": 3, "extra_body": {"return_token_ids": True}}
    async with served(tiny, tmp_path) as url, client(url) as openai:
        reply: Any = await openai.chat.completions.create(**asked, stream=stream)
        last = [chunk async for chunk in reply][-1] if stream else reply
    [choice] = last.choices
    assert len(choice.model_extra["token_ids"]) in (1, 2, 3)
    assert getattr(choice, "logprobs", None) is None


async def test_the_same_seed_gives_the_same_reply_and_a_stop_string_ends_it(tiny: Path, tmp_path: Path) -> None:
    async with served(tiny, tmp_path) as url, client(url) as openai:

        async def ask(**options: Any) -> str:
            answer = await openai.chat.completions.create(
                model="hindsight", messages=ASK, max_tokens=12, seed=3, **options
            )
            return answer.choices[0].message.content or ""

        whole = await ask()
        assert await ask() == whole
        middle = whole[len(whole) // 2]
        assert await ask(stop=[middle]) == whole.split(middle)[0]


async def test_a_stream_says_the_same_as_the_whole_reply(tiny: Path, tmp_path: Path) -> None:
    async with served(tiny, tmp_path) as url, client(url) as openai:
        options: dict[str, Any] = {"model": "hindsight", "messages": ASK, "max_tokens": 8, "seed": 5}
        whole = await openai.chat.completions.create(**options)
        stream = await openai.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        endings = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert endings[-1] == whole.choices[0].finish_reason
        assert len([chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]) > 1
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_promotions_and_rollbacks_under_load_fail_no_request_and_every_answer_names_its_step(
    tiny: Path, tmp_path: Path, database: Database
) -> None:
    store = store_of(tmp_path, "hindsight")
    steps = {
        step: await insert_checkpoint(database, step, backend="cpu", location=save_adapter(store, tiny, step))
        for step in (1, 2)
    }
    seen: list[str] = []
    stop = asyncio.Event()

    async with served(tiny, tmp_path) as url, client(url) as openai:

        async def load(agent: int) -> None:
            while not stop.is_set():
                reply = await openai.chat.completions.create(
                    model="hindsight", messages=ASK, max_tokens=3, user=str(agent)
                )
                seen.append(reply.model)

        async def until(name: str) -> None:
            async with asyncio.timeout(60):
                while not seen or seen[-1] != name:
                    await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as clients:
            for agent in range(8):
                clients.create_task(load(agent))
            await until("hindsight@step0")
            for step in (1, 2):
                endpoint = Serving(url, f"hindsight@step{step}")
                await publish(database, tmp_path, steps[step].as_release(), endpoint, reason="better")
                await until(f"hindsight@step{step}")
            await roll_back(
                database,
                tmp_path,
                "hindsight",
                lambda point: Serving(url, point.name),
                step=1,
                reason="worse after all",
            )
            await until("hindsight@step1")
            stop.set()
        assert set(seen) == {"hindsight@step0", "hindsight@step1", "hindsight@step2"}
        pinned = await openai.chat.completions.create(model="hindsight@step2", messages=ASK, max_tokens=3)
        assert pinned.model == "hindsight@step2"
        listed = [model.id async for model in openai.models.list()]
        assert listed == ["hindsight", "hindsight@step0", "hindsight@step1", "hindsight@step2"]


async def test_a_wrong_key_is_401_and_health_needs_none(tiny: Path, tmp_path: Path) -> None:
    async with served(tiny, tmp_path, key=KEY) as url:
        async with client(url, "wrong") as stranger:
            with pytest.raises(AuthenticationError):
                await stranger.chat.completions.create(model="hindsight", messages=ASK)
            with pytest.raises(AuthenticationError):
                await stranger.models.list()
        async with client(url, KEY) as friend:
            await friend.chat.completions.create(model="hindsight", messages=ASK, max_tokens=1)
        async with httpx.AsyncClient() as plain:
            assert (await plain.get(f"{url}/health")).json()["serving"] == "hindsight@step0"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"model": "gpt-4"}, NotFoundError),
        ({"model": "hindsight@step9"}, NotFoundError),
        ({"temperature": -1}, BadRequestError),
        ({"n": 0}, BadRequestError),
        ({"n": 1000}, BadRequestError),
        ({"max_tokens": 0}, BadRequestError),
        ({"messages": []}, BadRequestError),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, BadRequestError),
        ({"messages": IMAGE}, BadRequestError),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, BadRequestError),
        ({"top_p": 0.9}, BadRequestError),
        ({"logprobs": True, "top_logprobs": 2}, BadRequestError),
        ({"frequency_penalty": 0.5}, BadRequestError),
        ({"response_format": {"type": "json_object"}}, BadRequestError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_malformed_request_is_an_openai_error(
    tiny: Path, tmp_path: Path, change: dict[str, Any], kind: type[APIStatusError], stream: bool
) -> None:
    request: dict[str, Any] = {"model": "hindsight", "messages": ASK, "max_tokens": 4, "stream": stream} | change
    async with served(tiny, tmp_path) as url, client(url) as openai:
        with pytest.raises(kind) as caught:
            await openai.chat.completions.create(**request)
        assert "error" in json.loads(caught.value.response.text)


async def test_a_checkpoint_that_cannot_be_loaded_is_the_servers_fault(tiny: Path, tmp_path: Path) -> None:
    def write(directory: Path) -> None:
        (directory / "adapter_config.json").write_text("{}")

    store_of(tmp_path, "hindsight").save(StoredStep(1, "batch-1", 1, str(tiny)), write)
    async with served(tiny, tmp_path) as url, client(url) as openai:
        with pytest.raises(InternalServerError) as caught:
            await openai.chat.completions.create(model="hindsight@step1", messages=ASK, max_tokens=1)
        assert "error" in json.loads(caught.value.response.text)
        await openai.chat.completions.create(model="hindsight", messages=ASK, max_tokens=1)


async def test_a_checkpoint_of_another_base_model_is_not_served_on_this_one(
    tiny: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = shared_tiny_model(tmp_path_factory, seed=1)
    save_adapter(store_of(tmp_path, "hindsight"), other, 1)
    save_adapter(store_of(tmp_path, "hindsight"), tiny, 2)
    async with served(tiny, tmp_path) as url, client(url) as openai:
        with pytest.raises(NotFoundError) as caught:
            await openai.chat.completions.create(model="hindsight@step1", messages=ASK, max_tokens=1)
        assert f"was trained on {other} and cannot run on {tiny}" in str(caught.value)
        await openai.chat.completions.create(model="hindsight@step2", messages=ASK, max_tokens=1)


class BreaksOff:
    """A model that fails as nobody foresaw, after its first word."""

    name = "hindsight@step0"

    async def chat(self, *_: Any, on_text: OnText | None = None, **__: Any) -> list[Completion]:
        if on_text is not None:
            on_text(0, "Buy")
        await asyncio.sleep(0.05)
        raise RuntimeError("out of memory")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_while_a_reply_is_written_is_an_openai_error_and_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    stored = store_of(tmp_path, "hindsight")
    checkpoints = ServedCheckpoints(tmp_path, "hindsight", stored, lambda *_: BreaksOff(), base_model="base")
    async with listening_for(make_app(checkpoints, key=None)) as url, client(url) as openai:

        async def ask() -> None:
            answer: Any = await openai.chat.completions.create(model="hindsight", messages=ASK, stream=stream)
            async for _ in answer:
                pass

        with pytest.raises(APIError, match="its log says why"):
            await ask()
    assert [(record.message, record.exc_info) for record in caplog.records if record.levelname == "ERROR"] == [
        ("a request failed: RuntimeError: out of memory", None)
    ]


_scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_json = st.recursive(
    _scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
_fields = ["model", "messages", "n", "temperature", "max_tokens", "stop", "seed", "logprobs", "stream", "user", "tools"]
_fields += ["top_p", "top_logprobs", "logit_bias", "response_format", "return_tokens_as_token_ids"]
_bodies: st.SearchStrategy[bytes] = st.one_of(
    st.binary(max_size=200),
    _json.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(_fields), _json).map(
        lambda odd: json.dumps({"model": "hindsight", "messages": ASK, "max_tokens": 2} | odd).encode()
    ),
)


async def test_no_body_takes_the_server_down(tiny: Path, tmp_path: Path) -> None:
    async with served(tiny, tmp_path) as url:
        loop = asyncio.get_running_loop()

        @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(body=_bodies)
        def send(body: bytes) -> None:
            as_json = {"Content-Type": "application/json"}
            answer = httpx.post(f"{url}/v1/chat/completions", content=body, headers=as_json, timeout=60)
            assert answer.status_code in (200, 400, 404, 413), (answer.status_code, answer.text)
            if answer.status_code != 200:
                assert answer.json()["error"]["message"]

        await loop.run_in_executor(None, send)
        async with client(url) as openai:
            await openai.chat.completions.create(model="hindsight", messages=ASK, max_tokens=1)


async def test_more_requests_than_may_wait_are_told_to_come_back(tiny: Path, tmp_path: Path) -> None:
    async with served(tiny, tmp_path, most_waiting=2) as url, httpx.AsyncClient(timeout=60) as plain:
        body = {"model": "hindsight", "messages": ASK, "max_tokens": 60}
        answers = await asyncio.gather(*(plain.post(f"{url}/v1/chat/completions", json=body) for _ in range(12)))
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)
