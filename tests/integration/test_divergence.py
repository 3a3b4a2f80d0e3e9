"""The KL guard's figure on a tiny model: of the candidate itself, exact, and not lost on its way through the ledger."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_bridge.models import ChatMessage
from tests.builders_evaluation import make_evaluation
from tests.builders_training import good_and_bad_batch, make_trainee
from tests.tiny_model import shared_tiny_model
from trainer.config.training import GateSettings
from trainer.evidence import Look, Ruling, from_json, to_json
from trainer.inference.base_model import Adapters, load_base, load_tokenizer, prompt_tokens
from trainer.inference.divergence import (
    SampledReplies,
    divergence_from_base,
    divergences,
    evenly_spaced,
    mean_divergence,
)
from trainer.promote.gate import decide, evidence_of
from trainer.train.backends.cpu import CpuBackend
from trainer.types import StepResult

ANSWERED = [
    SampledReplies(
        [ChatMessage(role="system", content="You trade."), ChatMessage(role="user", content=f"ACME is at {price}.")],
        replies,
    )
    for price, replies in ((100, ((11, 12, 13, 2), (14, 2), ())), (97, ((15,), (11, 12, 13, 2))))
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    """One step from the base model."""
    result = asyncio.run(_trained(tmp_path_factory.mktemp("home"), tiny))
    assert result.metrics["kl"] == pytest.approx(0.0, abs=1e-5), "training measures before the update"
    return Path(result.checkpoint.location)


async def _trained(home: Path, base: Path) -> StepResult:
    backend = CpuBackend(make_trainee(home, base, learning_rate=5e-2), serve_url="http://127.0.0.1:1/v1")
    await backend.open()

    async def receipt(_: str) -> None: ...

    prepared = await backend.prepare(good_and_bad_batch("one", policy_step=0))
    result = await backend.train(prepared, on_submitted=receipt)
    await backend.close()
    return result


def test_divergence_is_that_of_whole_distributions() -> None:
    own, base = torch.tensor([[0.0, 0.0], [1.0, 5.0]]), torch.tensor([[0.0, math.log(3.0)], [1.0, 5.0]])
    assert divergences(own, base).tolist() == pytest.approx([0.5 * math.log(4 / 3), 0.0])


def test_a_checkpoint_is_measured_itself_and_reading_together_changes_nothing(tiny: Path, checkpoint: Path) -> None:
    assert divergence_from_base(tiny, None, ANSWERED) == 0.0
    measured = divergence_from_base(tiny, checkpoint, ANSWERED)
    assert measured is not None
    assert measured > 1e-3
    assert measured == pytest.approx(_one_by_one(tiny, checkpoint), rel=1e-3)


def _one_by_one(base: Path, adapter: Path) -> float:
    model, tokenizer = load_base(base, attention="sdpa"), load_tokenizer(base)
    adapters = Adapters(model)
    found: list[float] = []
    for point in ANSWERED:
        prompt = prompt_tokens(tokenizer, point.messages)
        for reply in filter(None, point.replies):
            logits = []
            for directory in (adapter, None):
                adapters.use(directory)
                whole = model(torch.tensor([[*prompt, *reply]])).logits[0]
                logits.append(whole[len(prompt) - 1 : -1])
            found += divergences(*logits).tolist()
    return sum(found) / len(found)


def test_of_many_decision_points_some_are_read_from_first_to_last() -> None:
    points = [SampledReplies(ANSWERED[0].messages, ((number,),)) for number in range(41)]
    read = [point.replies[0][0] for point in evenly_spaced(points, 20)]
    assert len(read) == 20
    assert (read[0], read[-1]) == (0, 38)
    assert {later - earlier for earlier, later in pairwise(read)} == {2}
    assert evenly_spaced(points[:3], 20) == points[:3]
    assert evenly_spaced([], 20) == []


def test_replies_without_tokens_are_not_measured(tiny: Path, checkpoint: Path) -> None:
    assert divergence_from_base(tiny, checkpoint, [SampledReplies(ANSWERED[0].messages, ((), ()))]) is None


def test_a_broken_checkpoint_breaks_the_guard_also_after_it_was_kept(
    tiny: Path, checkpoint: Path, tmp_path: Path
) -> None:
    weights = load_file(checkpoint / "adapter_model.safetensors")
    save_file({name: value * math.nan for name, value in weights.items()}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_bytes((checkpoint / "adapter_config.json").read_bytes())
    measured = divergence_from_base(tiny, tmp_path, ANSWERED)
    assert measured == mean_divergence([math.nan])

    evaluation = make_evaluation()
    figures = tuple(replace(one, kl_from_base=measured) for one in evaluation.figures)
    kept = from_json(to_json(replace(evaluation, figures=figures)))
    decision = decide(evidence_of(kept), GateSettings(), Look())
    assert decision.ruling is Ruling.REFUSE
    assert "KL from the base model" in decision.sentence
