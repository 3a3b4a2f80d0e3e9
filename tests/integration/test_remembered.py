"""What the base model replied to fixed questions is kept, to save time, whatever is in the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_bridge.models import ChatMessage
from tests.tiny_model import shared_tiny_model
from trainer.inference.chat_models import Engine, EngineModel
from trainer.inference.remembered import remembered
from trainer.types import ChatModel, Completion

ASKED = [ChatMessage(role="user", content="Up or down?")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


class Counting(Engine):
    """An engine that counts what it is asked."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, threads=1)
        self.asked = 0

    def submit(self, request: object) -> None:
        self.asked += 1
        super().submit(request)  # type: ignore[arg-type]


async def ask(model: ChatModel, temperature: float = 1.0, seed: int | None = 5, n: int = 2) -> list[str]:
    replies = await model.chat(ASKED, n=n, temperature=temperature, max_tokens=6, seed=seed)
    return [reply.text for reply in replies]


async def evaluated(base: Path, home: Path, **how: float | None) -> tuple[list[str], int]:
    """The replies of a fresh engine, and how often it was asked."""
    engine = Counting(base)
    try:
        with remembered(engine.model(None, "base"), home) as model:
            return await ask(model, **how), engine.asked  # type: ignore[arg-type]
    finally:
        await engine.close()


async def test_what_was_asked_before_is_not_asked_again(tiny: Path, tmp_path: Path) -> None:
    said, asked = await evaluated(tiny, tmp_path)
    assert asked == 1
    assert await evaluated(tiny, tmp_path) == (said, 0)
    for other in ({"temperature": 0.5}, {"seed": 6}, {"n": 1}):
        assert (await evaluated(tiny, tmp_path, **other))[1] == 1, f"another question: {other}"
    assert (await evaluated(tiny, tmp_path, seed=None))[1] == 1
    assert (await evaluated(tiny, tmp_path, seed=None))[1] == 1, "without a seed every reply is another"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"a": 1}', b"\xff\xfe", b"[" * 100_000, b'{"a": ["b"]}' + b" " * (1 << 24)],
    ids=["empty", "cut", "a list", "no replies", "not text", "nested", "huge"],
)
async def test_a_damaged_or_foreign_file_costs_nothing_but_time(tiny: Path, tmp_path: Path, content: bytes) -> None:
    said, _ = await evaluated(tiny, tmp_path)
    [file] = (tmp_path / "replies").iterdir()
    file.write_bytes(content)
    assert await evaluated(tiny, tmp_path) == (said, 1)
    assert await evaluated(tiny, tmp_path) == (said, 0), "and it is mended"


async def test_too_few_replies_in_the_file_are_no_answer(tiny: Path, tmp_path: Path) -> None:
    said, _ = await evaluated(tiny, tmp_path)
    [file] = (tmp_path / "replies").iterdir()
    file.write_bytes(file.read_bytes().split(b"[")[0] + b"[]}")
    assert await evaluated(tiny, tmp_path) == (said, 1)


async def test_a_file_that_cannot_be_written_stops_nothing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "replies").write_text("in the way")
    said, _ = await evaluated(tiny, tmp_path)
    assert await evaluated(tiny, tmp_path) == (said, 1)


async def test_other_weights_under_the_same_path_are_asked_themselves(tiny: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for file in tiny.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    await evaluated(base, tmp_path / "home")
    os.utime(base / "config.json", ns=(1, 1))
    assert (await evaluated(base, tmp_path / "home"))[1] == 1


async def test_only_the_untrained_model_on_this_machine_is_remembered(tiny: Path, tmp_path: Path) -> None:
    class Elsewhere:
        name = "endpoint"

        async def chat(self, *_: object, **__: object) -> list[Completion]:
            raise NotImplementedError

    trained = EngineModel(Engine(tiny), tmp_path / "step-000001", "hindsight@step1")
    for model in (trained, Elsewhere()):
        with remembered(model, tmp_path) as same:  # type: ignore[arg-type]
            assert same is model
    assert not (tmp_path / "replies").exists()
