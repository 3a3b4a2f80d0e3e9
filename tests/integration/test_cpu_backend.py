"""The CPU backend on a tiny random model: real tokenizer, real ART, real LoRA, seconds instead of minutes."""

from __future__ import annotations

import asyncio
import errno
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.models import ChatMessage
from data_bridge.scoring import ScoreRequest
from tests.builders_training import good_and_bad_batch, judged, make_batch, make_trainee, replying
from tests.tiny_model import shared_tiny_model
from trainer.inference.checkpoints import CheckpointStore, StoredStep
from trainer.train.backends.cpu import CpuBackend
from trainer.types import Batch, StepResult

SERVE_URL = "http://127.0.0.1:8808/v1"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


async def receipt(_: str) -> None:
    """The ledger's part, which these tests do not need."""


async def train(backend: CpuBackend, batch: Batch) -> StepResult:
    return await backend.train(await backend.prepare(batch), on_submitted=receipt)


async def opened(home: Path, base: Path, **fields: Any) -> CpuBackend:
    backend = CpuBackend(make_trainee(home, base, **fields), SERVE_URL)
    await backend.open()
    return backend


def reply_to(hour: int, text: str) -> ScoreRequest:
    prompt = f"Hour {hour}: ACME trades at {100 + hour}. Step 0."
    messages = (ChatMessage(role="system", content="You trade."), ChatMessage(role="user", content=prompt))
    return ScoreRequest(messages, text)


async def likelihood(backend: CpuBackend, text: str, hours: int = 2) -> float:
    scored = await backend._backend.scorer.score([reply_to(hour, text) for hour in range(hours)])
    return sum(sum(one.logprobs) for one in scored if one is not None)


async def test_ten_steps_raise_the_best_reply_and_lower_the_worst(tmp_path: Path, tiny: Path) -> None:
    backend = await opened(tmp_path, tiny, learning_rate=5e-3)
    best, worst = await likelihood(backend, "BUY ACME 10"), await likelihood(backend, "HOLD for now")
    for step in range(10):
        result = await train(backend, good_and_bad_batch(f"batch-{step}", policy_step=step))
    assert result.checkpoint.step == 10
    assert await likelihood(backend, "BUY ACME 10") > best + 1
    assert await likelihood(backend, "HOLD for now") < worst - 1
    await backend.close()


async def test_a_step_reports_what_it_did(tmp_path: Path, tiny: Path) -> None:
    backend = await opened(tmp_path, tiny)
    result = await train(backend, good_and_bad_batch())
    metrics = result.metrics
    assert result.trainable_tokens == metrics["trainable_tokens"] > 0
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-4)  # scored by the policy that is trained
    assert metrics["effective_sample_size"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-5)  # the first step starts at the base model
    assert metrics["clip_share"] == 0
    assert metrics["share_foreign"] == 0
    assert metrics["share_rescored"] == 1
    assert metrics["reward"] == pytest.approx((1.0 + 0.6 + 0.3) / 4)
    assert metrics["grad_norm"] > 0
    assert 0 < metrics["entropy"] < 11
    await backend.close()


@pytest.mark.parametrize(("level", "ratio", "clip_share"), [("token", math.cosh(1), 0.5), ("sequence", 1.0, 0.0)])
async def test_ratio_and_clipping_are_measured_at_the_level_at_which_the_loss_takes_them(
    tmp_path: Path, tiny: Path, level: str, ratio: float, clip_share: float
) -> None:
    """The log is a nat too high and too low by turns, so that each reply as a whole is as likely as it was."""
    backend = await opened(tmp_path, tiny, importance_level=level)
    agents = []
    for text in ("BUY ACME 10", "HOLD for now"):
        [scored] = await backend._backend.scorer.score([reply_to(0, text)])
        assert scored is not None
        even = len(scored.token_ids) // 2 * 2
        logged = [one + (-1) ** place for place, one in enumerate(scored.logprobs[:even])]
        tokens = {"completion_token_ids": list(scored.token_ids[:even]), "completion_logprobs": logged}
        agents.append(replying(text, text, prompt="Hour 0: ACME trades at 100.", **tokens))
    metrics = (await train(backend, make_batch(judged(agents, [1.0, 0.0])))).metrics
    assert metrics["ratio"] == pytest.approx(ratio, abs=1e-3)
    assert metrics["clip_share"] == pytest.approx(clip_share)
    assert (metrics["effective_sample_size"] == pytest.approx(1.0, abs=1e-4)) == (level == "sequence")
    await backend.close()


async def test_a_resumed_run_comes_to_the_same_numbers(tmp_path: Path, tiny: Path) -> None:
    batches = [good_and_bad_batch(f"batch-{step}", policy_step=step) for step in range(4)]
    whole = await opened(tmp_path / "whole", tiny)
    expected = [(await train(whole, batch)).metrics["loss"] for batch in batches]
    expected_end = await likelihood(whole, "BUY ACME 10")
    await whole.close()

    losses = []
    for batch in batches:
        resumed = await opened(tmp_path / "parts", tiny)
        losses.append((await train(resumed, batch)).metrics["loss"])
        end = await likelihood(resumed, "BUY ACME 10")
        await resumed.close()
    assert losses == expected
    assert end == expected_end


async def test_nothing_trainable_is_an_error_with_the_reasons(tmp_path: Path, tiny: Path) -> None:
    backend = await opened(tmp_path, tiny)
    same = judged([replying("a", "BUY"), replying("b", "SELL")], [0.5, 0.5])
    with pytest.raises(BackendError, match=r"no trainable token.*2 no_spread") as refused:
        await train(backend, make_batch(same))
    assert refused.value.exit_code == 4
    assert await backend.current_step() == 0
    await backend.close()


async def test_a_durable_batch_is_found_after_a_crash_and_an_unknown_one_is_not(tmp_path: Path, tiny: Path) -> None:
    backend = await opened(tmp_path, tiny)
    trained = await train(backend, good_and_bad_batch("batch-7"))
    await backend.close()
    after = await opened(tmp_path, tiny)
    assert await after.settle("batch-7", None, 0) == trained
    assert await after.settle("batch-8", None, 1) is None
    await after.close()


async def test_a_damaged_checkpoint_is_set_aside_and_the_last_good_one_goes_on(
    tmp_path: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backend = await opened(tmp_path, tiny)
    await train(backend, good_and_bad_batch("batch-1"))
    second = await train(backend, good_and_bad_batch("batch-2", policy_step=1))
    await backend.close()
    weights = Path(second.checkpoint.location) / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-10] ^= 1
    weights.write_bytes(content)

    after = await opened(tmp_path, tiny)
    assert await after.current_step() == 1
    assert "step 2 is damaged" in caplog.text
    assert await after.settle("batch-2", None, 1) is None
    again = await train(after, good_and_bad_batch("batch-2", policy_step=1))
    assert again.metrics["loss"] == second.metrics["loss"]
    await after.close()


async def test_a_full_disk_is_a_sentence_and_the_next_try_starts_from_the_last_good_step(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await opened(tmp_path, tiny)
    await train(backend, good_and_bad_batch("batch-1"))
    write_bytes = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write_bytes(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(BackendError, match=r"disk of .* is full.*step 1 is still the newest"):
            await train(backend, good_and_bad_batch("batch-2", policy_step=1))
    assert await backend.current_step() == 1
    assert [entry.name for entry in (tmp_path / "checkpoints/hindsight").iterdir()] == ["step-000001"]

    result = await train(backend, good_and_bad_batch("batch-2", policy_step=1))
    undisturbed = await opened(tmp_path / "other", tiny)
    await train(undisturbed, good_and_bad_batch("batch-1"))
    expected = await train(undisturbed, good_and_bad_batch("batch-2", policy_step=1))
    assert result.metrics["loss"] == expected.metrics["loss"]
    await backend.close()
    await undisturbed.close()


def test_what_a_killed_write_left_is_removed_and_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (tmp_path / ".unfinished-abc").mkdir()
    (tmp_path / ".unfinished-abc" / "adapter_model.safetensors").write_bytes(b"half")
    assert store.newest() is None

    def write(directory: Path) -> None:
        (directory / "weights").write_bytes(b"w")

    store.save(StoredStep(1, "batch-1", 5, "tiny"), write)
    assert not list(tmp_path.glob(".unfinished-*"))
    assert store.newest() == StoredStep(1, "batch-1", 5, "tiny")


async def test_a_model_directory_without_a_tokenizer_is_one_sentence(tmp_path: Path, tiny: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(tiny / name)
    backend = CpuBackend(make_trainee(tmp_path, bare), SERVE_URL)
    with pytest.raises(ConfigurationError, match="tokenizer is missing"):
        await backend.open()
    await backend.close()


async def test_another_base_model_under_the_same_name_is_refused(tmp_path: Path, tiny: Path) -> None:
    backend = await opened(tmp_path, tiny)
    await train(backend, good_and_bad_batch())
    await backend.close()
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    with pytest.raises(BackendError, match="another --model name"):
        await opened(tmp_path, other)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "cispo"},
        {"importance_level": "sequence"},
        {"kl": 0.1},
        {"updates": 2},
        {"warm_start": 1},
        {"entropy_bonus": 0.01},
        {"scale_rewards": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
async def test_every_training_setting_still_prefers_the_best_reply(
    tmp_path: Path, tiny: Path, settings: dict[str, Any]
) -> None:
    backend = await opened(tmp_path, tiny, learning_rate=5e-3, **settings)
    before = await likelihood(backend, "BUY ACME 10")
    await train(backend, good_and_bad_batch("batch-1"))
    await train(backend, good_and_bad_batch("batch-2", policy_step=1))
    assert await likelihood(backend, "BUY ACME 10") > before
    await backend.close()


async def test_the_engine_and_the_trainer_agree_on_log_probabilities(tmp_path: Path, tiny: Path) -> None:
    from trainer.inference.chat_models import Engine

    backend = await opened(tmp_path, tiny, learning_rate=5e-3)
    checkpoint = (await train(backend, good_and_bad_batch())).checkpoint
    engine = Engine(tiny, threads=1)
    request = reply_to(0, "")
    replies = await engine.model(Path(checkpoint.location), checkpoint.name).chat(
        request.messages, n=3, max_tokens=8, seed=0
    )
    untrained = await engine.model(None, "base").chat(request.messages, n=1, max_tokens=8, seed=1)
    scored = await backend._backend.scorer.score(
        [ScoreRequest(request.messages, reply.text, token_ids=reply.token_ids) for reply in [*replies, *untrained]]
    )
    for reply, score in zip(replies, scored, strict=False):
        assert score is not None
        assert reply.logprobs == pytest.approx(score.logprobs, abs=1e-3)
    assert scored[-1] is not None
    assert untrained[0].logprobs != pytest.approx(scored[-1].logprobs, abs=1e-3)  # another policy indeed
    await asyncio.gather(engine.close(), backend.close())


def test_a_forward_runs_after_art_was_imported(tiny: Path) -> None:
    """art patches transformers' masks with the signature of one version; another would raise a TypeError here."""
    program = (
        "import art, torch; from transformers import AutoModelForCausalLM; "
        f"model = AutoModelForCausalLM.from_pretrained({str(tiny)!r}); "
        "print(tuple(model(torch.tensor([[1, 2, 3]])).logits.shape))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "(1, 3, 49152)", done.stderr[-500:]
