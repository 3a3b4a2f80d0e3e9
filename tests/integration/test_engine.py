"""The engine on the tiny model: batching changes the speed, never the reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.models import ChatMessage
from tests.tiny_model import shared_embedded_home, shared_tiny_model
from trainer.inference.base_model import model_directory
from trainer.inference.chat_models import Engine
from trainer.types import Completion


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture
async def engine(tiny: Path) -> AsyncIterator[Engine]:
    engine = Engine(tiny, threads=1)
    yield engine
    await engine.close()


def asking(question: str, rules: str = "You trade. " * 12) -> list[ChatMessage]:
    return [ChatMessage(role="system", content=rules), ChatMessage(role="user", content=question)]


def same(one: Completion, other: Completion) -> bool:
    return one.token_ids == other.token_ids and one.logprobs == pytest.approx(other.logprobs, abs=1e-3)


async def test_replies_are_the_models_own_greedy_ones_with_their_log_probabilities(engine: Engine, tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from trainer.inference.base_model import load_tokenizer, prompt_tokens

    plain = AutoModelForCausalLM.from_pretrained(tiny)
    tokenizer = load_tokenizer(tiny)
    model = engine.model(None, "tiny")
    questions = ["Up?", "Will ACME rise after the report?", "Down? " * 9]
    answers = await asyncio.gather(*(model.chat(asking(q), n=2, temperature=0, max_tokens=6) for q in questions))
    for question, replies in zip(questions, answers, strict=True):
        tokens = list(prompt_tokens(tokenizer, asking(question)))
        for number, token in enumerate(replies[0].token_ids):
            with torch.no_grad():
                logprobs = torch.log_softmax(plain(torch.tensor([tokens])).logits[0, -1], -1)
            assert int(logprobs.argmax()) == token
            assert replies[0].logprobs[number] == pytest.approx(float(logprobs[token]), abs=1e-3)
            tokens.append(token)
        assert same(replies[0], replies[1])


async def test_a_seeded_request_gets_the_same_replies_alone_and_in_company(engine: Engine) -> None:
    model = engine.model(None, "tiny")
    alone = await model.chat(asking("Up?"), n=3, seed=5, max_tokens=8)
    company = [model.chat(asking(f"Number {number}?"), n=2, max_tokens=12) for number in range(6)]
    together, *_ = await asyncio.gather(model.chat(asking("Up?"), n=3, seed=5, max_tokens=8), *company)
    assert all(same(one, other) for one, other in zip(alone, together, strict=True))
    assert len({reply.token_ids for reply in alone}) == 3  # the samples of one request differ


async def test_replies_that_begin_alike_are_one_row_until_they_differ_and_stay_what_they_are_alone(
    engine: Engine, tiny: Path
) -> None:
    from trainer.inference.engine_loop import EngineLoop
    from trainer.inference.request import EngineRequest

    temperatures = (0.0, 0.0, 0.3, 0.3, 0.3, 1.0)
    requests = [
        EngineRequest(tuple(asking("Up or down?")), None, "tiny", 1, temperature, 12, (), seed, None, lambda _: None)
        for seed, temperature in enumerate(temperatures)
    ]
    loop = EngineLoop(tiny, 1, 2)
    loop.admit(requests)
    [wave] = loop._waves
    rows = [wave.rows]
    while loop.is_busy:
        loop.step()
        rows.append(wave.rows)
    said = [tuple(request.replies[0].token_ids) for request in requests]
    beginnings = [len({own[:length] for own in said}) for length in range(12)]
    assert rows[:12] == beginnings, "one row for each different beginning"
    assert 1 < beginnings[-1] < len(said), "some differ, and some do not"
    for request, temperature in zip(requests, temperatures, strict=True):
        [alone] = await engine.model(None, "tiny").chat(
            asking("Up or down?"), temperature=temperature, max_tokens=12, seed=request.seed
        )
        [reply] = request.replies
        assert alone.token_ids == tuple(reply.token_ids)
        assert alone.logprobs == pytest.approx(reply.logprobs, abs=1e-3)


async def test_whoever_comes_while_others_are_written_gets_the_same_reply(engine: Engine) -> None:
    model = engine.model(None, "tiny")
    questions = [f"Number {number}? " + "And then? " * number for number in range(6)]
    alone = [await model.chat(asking(question), n=2, seed=3, max_tokens=40) for question in questions]
    coming = []
    for question in questions:
        coming.append(asyncio.create_task(model.chat(asking(question), n=2, seed=3, max_tokens=40)))
        await asyncio.sleep(0.02)  # some tokens later: each begins a wave of its own, which is then joined
    for one, other in zip(alone, await asyncio.gather(*coming), strict=True):
        assert all(same(*pair) for pair in zip(one, other, strict=True))


async def test_a_short_reply_does_not_wait_for_long_ones_to_end(engine: Engine) -> None:
    model = engine.model(None, "tiny")
    long = []
    for name in ("ACME", "COIN", "MOON"):
        has_begun = asyncio.Event()
        asked = model.chat(
            asking(f"All about {name}"), max_tokens=3000, on_text=lambda *_, begun=has_begun: begun.set()
        )
        long.append(asyncio.create_task(asked))
        await has_begun.wait()
    await model.chat(asking("Up?"), max_tokens=1)
    assert not any(reply.done() for reply in long)
    for reply in long:
        reply.cancel()


async def test_a_remembered_beginning_changes_no_reply(engine: Engine, tiny: Path) -> None:
    model = engine.model(None, "tiny")
    first = await model.chat(asking("Up?"), temperature=0, max_tokens=6)
    await model.chat(asking("Something else entirely, and longer."), temperature=0, max_tokens=6)
    again = await model.chat(asking("Up?"), temperature=0, max_tokens=6)
    fresh = Engine(tiny, threads=1)
    other = await fresh.model(None, "tiny").chat(asking("Up?"), temperature=0, max_tokens=6)
    await fresh.close()
    assert same(first[0], again[0])
    assert same(first[0], other[0])


async def test_length_and_stop_strings_end_a_reply(engine: Engine) -> None:
    model = engine.model(None, "tiny@step0")
    (whole,) = await model.chat(asking("Up?"), temperature=0, max_tokens=6)
    assert (whole.finish_reason, len(whole.token_ids), whole.model) == ("length", 6, "tiny@step0")
    word = whole.text[3:6]
    (cut,) = await model.chat(asking("Up?"), temperature=0, max_tokens=6, stop=[word])
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(word)]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]  # what was sampled, the stop included


async def test_a_cancelled_request_leaves_the_others_alone(engine: Engine) -> None:
    model = engine.model(None, "tiny")
    expected = await model.chat(asking("Up?"), seed=1, max_tokens=20)
    doomed = asyncio.create_task(model.chat(asking("Cancel me"), n=4, max_tokens=2000))
    staying = asyncio.create_task(model.chat(asking("Up?"), seed=1, max_tokens=20))
    await asyncio.sleep(0.05)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    assert same((await staying)[0], expected[0])
    assert len(await asyncio.wait_for(model.chat(asking("After"), max_tokens=2), timeout=60)) == 1


async def test_a_prompt_beyond_the_context_is_a_sentence_for_its_caller_only(engine: Engine) -> None:
    model = engine.model(None, "tiny")
    long, short = await asyncio.gather(
        model.chat(asking("word " * 5000), max_tokens=4),
        model.chat(asking("Up?"), max_tokens=4),
        return_exceptions=True,
    )
    assert isinstance(long, BackendError)
    assert "context is 4096" in str(long)
    assert isinstance(short, list)


async def test_closing_ends_what_is_under_way_and_refuses_what_comes(tiny: Path) -> None:
    engine = Engine(tiny, threads=1)
    model = engine.model(None, "tiny")
    await model.chat(asking("Up?"), max_tokens=1)
    running = asyncio.create_task(model.chat(asking("Long"), n=8, max_tokens=3000))
    await asyncio.sleep(0.05)
    await engine.close()
    with pytest.raises(BackendError, match="closed"):
        await running
    with pytest.raises(BackendError, match="closed"):
        await model.chat(asking("Up?"))


async def test_a_missing_checkpoint_is_a_sentence(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="cannot be read"):
        await engine.model(tmp_path / "nothing", "gone@step9").chat(asking("Up?"))
    assert await engine.model(None, "tiny").chat(asking("Up?"), max_tokens=1)


async def test_a_model_without_a_chat_template_is_a_sentence(tiny: Path, tmp_path: Path) -> None:
    import shutil

    bare = Path(shutil.copytree(tiny, tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink()
    engine = Engine(bare)
    with pytest.raises(ConfigurationError, match="no chat template"):
        await engine.model(None, "bare").chat(asking("Up?"))
    await engine.close()


async def test_messages_that_the_chat_template_refuses_are_their_callers_fault(tiny: Path, tmp_path: Path) -> None:
    import shutil

    strict = Path(shutil.copytree(tiny, tmp_path / "strict"))
    (strict / "chat_template.jinja").write_text("{{ raise_exception('System role not supported') }}")
    engine = Engine(strict)
    with pytest.raises(BackendError, match="System role not supported") as caught:
        await engine.model(None, "strict").chat(asking("Up?"))
    assert isinstance(caught.value, ValueError)
    await engine.close()


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [("config.json", "config.json is missing"), ("model.safetensors", "no weights"), ("tokenizer.json", "tokenizer")],
)
def test_an_incomplete_model_directory_says_what_is_missing(
    tiny: Path, tmp_path: Path, missing: str, sentence: str
) -> None:
    for file in tiny.iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ConfigurationError, match=sentence):
        model_directory(str(tmp_path), tmp_path)
    with pytest.raises(ConfigurationError, match="no such directory"):
        model_directory("./nowhere", tmp_path)


@pytest.mark.model
async def test_the_embedded_model_knows_its_capital_cities(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The conversion end to end: a wrong tokenizer or a wrong layout of the heads gives no sentence at all."""
    base = model_directory("smollm2-135m-instruct", shared_embedded_home(tmp_path_factory))
    engine = Engine(base)
    messages = [ChatMessage(role="user", content="What is the capital of France?")]
    (reply,) = await engine.model(None, "base").chat(messages, temperature=0, max_tokens=16)
    await engine.close()
    assert reply.text == "The capital of France is Paris."
    assert reply.token_ids[-1] == 2
    assert reply.finish_reason == "stop"
