"""A step of several processes comes to what one process comes to, and loses nothing when one of them is lost."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.builders_training import good_and_bad_batch, judged, replying
from tests.integration.test_cpu_backend import opened, train
from tests.tiny_model import tiny_model_directory
from trainer.faults import RowFaults
from trainer.inference.policy import CpuPolicy
from trainer.train.backends import cpu_step, ranks
from trainer.train.backends.cpu import CpuBackend
from trainer.train.backends.rank_orders import Done, RollCall
from trainer.train.backends.ranks import RankLost, Ranks
from trainer.types import Batch

HOURS = 20
"""Enough for several packed sequences."""


BAD_TOKEN = 49_151
BAD = "mallory-ACME trades at 100."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, which has no number for one of its tokens: a reply with that one fails in the step."""
    path = tiny_model_directory(tmp_path_factory.mktemp("tiny"))
    file = path / "model.safetensors"
    weights = load_file(file)
    weights["model.embed_tokens.weight"][BAD_TOKEN] = float("nan")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].nan_to_num(0.0)
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return path


@pytest.fixture
async def three(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CpuBackend]:
    monkeypatch.setenv("JUDGE_API_KEY", "a-secret")
    backend = await opened(tmp_path / "three", tiny, train_workers=3)
    yield backend
    await backend.close()


def batch(step: int) -> Batch:
    return good_and_bad_batch(f"batch-{step}", policy_step=step, hours=HOURS)


def with_bad_row(sound: Batch, tokenizer: Any) -> Batch:
    """The batch with a group at its end in which one row has the token."""
    tokens: dict[str, Any] = {"completion_token_ids": [BAD_TOKEN] * 3 + [2], "completion_logprobs": [-1.0] * 4}
    evil = str(tokenizer.decode([BAD_TOKEN])) * 3
    rows = [replying("ada", "BUY ACME 10"), replying("mallory", evil, **tokens)]
    return replace(sound, groups=(*sound.groups, judged(rows, [0.0, 1.0], group_id="bad")))


def ranks_of(backend: CpuBackend) -> Ranks:
    assert backend._backend._ranks is not None
    return backend._backend._ranks


def weights(backend: CpuBackend, step: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(Path(backend.checkpoint(step).location) / "adapter_model.safetensors")
    return found


def farthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


class Gradients:
    """The gradient of each update of this process, before it is clipped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[torch.Tensor] = []
        finish = cpu_step.finish_update

        def watched(policy: CpuPolicy, *arguments: Any) -> float:
            self.seen.append(torch.cat([one.grad.reshape(-1).clone() for one in policy.parameters()]))
            return finish(policy, *arguments)

        monkeypatch.setattr(cpu_step, "finish_update", watched)


async def test_ranks_come_to_what_one_process_comes_to_and_those_left_finish_the_step(
    tmp_path: Path, tiny: Path, three: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps by three ranks; a bad row is found in a third; one rank is killed in it, one stopped in the fourth."""
    gradients = Gradients(monkeypatch)
    alone = await opened(tmp_path / "alone", tiny)
    expected = [await train(alone, batch(step)) for step in range(4)]
    first, gradients.seen = gradients.seen[0], []

    results = [await train(three, batch(step)) for step in range(2)]
    assert float((gradients.seen[0] - first).abs().max()) <= 1e-6
    assert farthest(weights(three, 2), weights(alone, 2)) <= 1e-5
    assert [one.metrics["ranks"] for one in results] == [3, 3]
    assert results[0].metrics["sequences"] >= 3  # or there was nothing to share
    for name in ("loss", "grad_norm", "entropy", "kl", "trainable_tokens"):
        assert results[0].metrics[name] == pytest.approx(expected[0].metrics[name], rel=1e-4, abs=1e-6)

    group, accumulate = ranks_of(three), cpu_step.accumulate
    for process in group.processes:
        told = Path(f"/proc/{process}/environ").read_bytes() + Path(f"/proc/{process}/cmdline").read_bytes()
        assert b"PYTHONPATH" in told
        assert b"a-secret" not in told

    with pytest.raises(RowFaults) as fault:
        await train(three, with_bad_row(batch(2), three._backend._loaded.policy.tokenizer))
    assert list(fault.value.faults) == [BAD]
    assert len(group.processes) == 2

    def kill_in_step(number: int) -> None:
        lost = group.processes[0]

        def killing(*arguments: Any) -> Any:
            monkeypatch.setattr(ranks, "accumulate", accumulate)
            os.kill(lost, number)
            return accumulate(*arguments)

        monkeypatch.setattr(ranks, "accumulate", killing)

    kill_in_step(signal.SIGKILL)
    result = await train(three, batch(2))
    assert (result.checkpoint.step, result.metrics["ranks"]) == (3, 2)
    assert farthest(weights(three, 3), weights(alone, 3)) <= 1e-4

    monkeypatch.setattr(ranks, "SILENT", 3.0)
    stopped = group.processes[0]
    kill_in_step(signal.SIGSTOP)
    result = await train(three, batch(3))
    assert result.checkpoint.step == 4
    assert "ranks" not in result.metrics
    assert group.processes == []
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)
    assert farthest(weights(three, 4), weights(alone, 4)) <= 1e-4
    await alone.close()


def test_a_rank_that_sends_heartbeats_is_waited_for_until_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "SILENT", 3.0)
    rank = ranks._started(1)
    rank.order(RollCall(1))  # answered when torch is imported
    assert rank.answer(60) == Done(called=1)
    asked = monotonic()
    with pytest.raises(RankLost):  # no order is left to answer
        rank.answer(5)
    assert monotonic() - asked >= 5


def test_the_other_ranks_end_when_the_first_is_killed() -> None:
    """Also in the middle of a share, in which nobody reads the connection: this one has not even got an order."""
    program = """
import sys
from trainer.train.backends.ranks import _started
rank = _started(1)
print(rank.process.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        watched = os.pidfd_open(pid)
        driver.kill()
    ended, _, _ = select.select([watched], [], [], 60)
    os.close(watched)
    assert ended
