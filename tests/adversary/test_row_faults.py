"""A fault inside a batch is bisected to its row: the others are trained, and the row is excluded for good."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from data_bridge.art_converter import RewardedTrajectory, convert_group
from data_bridge.errors import BackendError
from data_bridge.models import AgentTrajectory
from data_bridge.quality import Reason
from tests.builders import make_call, make_step, make_trajectory
from tests.builders_judge import make_group
from tests.builders_training import judged, make_batch, make_settings, opened_backend
from tests.tiny_model import shared_tiny_model
from trainer.faults import RowFaults, bisected, may_be_a_rows
from trainer.inference.policy import CpuPolicy
from trainer.judge import outcome, view
from trainer.judge.outcome import OutcomeJudge
from trainer.train.backends import prepare as preparing
from trainer.train.selection import advantages
from trainer.types import JudgedGroup, JudgeFailure, PreparedBatch

BROKEN = 49_151
"""A token of the tokenizer for which the models below have no number."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models as one finds them: one with fewer tokens than its tokenizer, one whose weights of a token are NaN."""
    from transformers import AutoModelForCausalLM

    made = {}
    for name in ("short", "nan"):
        path = shutil.copytree(shared_tiny_model(tmp_path_factory), tmp_path_factory.mktemp(name) / "model")
        model = AutoModelForCausalLM.from_pretrained(path)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        model.config.tie_word_embeddings = False
        if name == "short":
            model.resize_token_embeddings(BROKEN)
        else:
            model.get_input_embeddings().weight.data[BROKEN] = float("nan")
        model.save_pretrained(path)
        made[name] = path
    return made


def row(agent: str, tokenizer: Any, reply: str, *, has_tokens: bool) -> AgentTrajectory:
    ids = [*tokenizer.encode(reply, add_special_tokens=False), int(tokenizer.eos_token_id)]
    fields: dict[str, Any] = {}
    if has_tokens:
        fields = {"completion_token_ids": ids, "completion_logprobs": [-1.0] * len(ids)}
    steps = [make_step(number, calls=[make_call(reply, **fields)]) for number in range(2)]
    return make_trajectory(agent, trajectory_id=agent, steps=steps)


async def _submitted(_: str) -> None:
    return None


@pytest.mark.parametrize("model", ["short", "nan"])
@pytest.mark.parametrize("has_tokens", [True, False], ids=["found in the step", "found in scoring"])
async def test_a_row_on_which_the_model_itself_fails_costs_that_row(
    model: str, has_tokens: bool, models: dict[str, Path], tmp_path: Path
) -> None:
    """A reply with a token that the model has no numbers for. Before, the step failed, and so did every later run."""
    settings = make_settings(tmp_path, models[model], min_spread=0.0)
    async with opened_backend(settings) as backend:
        tokenizer: Any = backend._backend._loaded.policy.tokenizer  # type: ignore[attr-defined]
        evil = str(tokenizer.decode([BROKEN]))
        honest = [row(name, tokenizer, f"BUY {name}", has_tokens=has_tokens) for name in ("ada", "ben", "cem", "dia")]
        mallory = row("mallory", tokenizer, evil * 3, has_tokens=has_tokens)
        groups = [judged([honest[0], mallory, honest[1]], [0.0, 1.0, 0.4]), judged(honest[2:], [0.0, 1.0])]
        prepared = await backend.prepare(make_batch(*groups))
        if has_tokens:
            assert prepared.exclusions == ()
            with pytest.raises(RowFaults) as found:
                await backend.train(prepared, on_submitted=_submitted)
            assert set(found.value.faults) == {"mallory"}
            assert "mallory" not in str(found.value)
            prepared = await backend.prepare(excluding(prepared, found.value))
        assert [(one.trajectory_id, one.reason) for one in prepared.exclusions] == [("mallory", Reason.ROW_FAULT)]
        result = await backend.train(prepared, on_submitted=_submitted)
    assert result.checkpoint.step == 1
    assert result.trainable_tokens == prepared.trainable_tokens > 0


def excluding(prepared: PreparedBatch, found: RowFaults) -> Any:
    from dataclasses import replace

    from data_bridge.quality import exclusion_of

    batch = prepared.batch
    members = [one for group in batch.groups for one in group.group.trajectories]
    named = [one for one in members if one.trajectory_id in found.faults]
    return replace(batch, untrained=tuple(exclusion_of(one, Reason.ROW_FAULT, "IndexError") for one in named))


@pytest.mark.parametrize("model", ["short", "nan"])
async def test_a_failed_step_changes_neither_weights_nor_optimizer(
    model: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """With two updates in a step the first is done when the second fails: both are undone."""
    settings = make_settings(tmp_path, models[model], min_spread=0.0, updates=2)
    async with opened_backend(settings) as backend:
        policy: CpuPolicy = backend._backend._loaded.policy  # type: ignore[attr-defined]
        tokenizer: Any = policy.tokenizer
        honest = [row(name, tokenizer, f"BUY {name}" * 90, has_tokens=True) for name in ("ada", "ben", "cem", "dia")]
        await backend.train(
            await backend.prepare(make_batch(judged(honest, [0, 0.3, 0.6, 1]))), on_submitted=_submitted
        )
        before = state_of(policy)
        mallory = row("mallory", tokenizer, str(tokenizer.decode([BROKEN])) * 3, has_tokens=True)
        bad = await backend.prepare(make_batch(judged([*honest, mallory], [0, 0.3, 0.6, 1, 0.9]), batch_id="batch-2"))
        with pytest.raises(RowFaults):
            await backend.train(bad, on_submitted=_submitted)
        after = state_of(policy)
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert await backend.current_step() == 1


def state_of(policy: CpuPolicy) -> dict[str, torch.Tensor]:
    state = {name: value.detach().clone() for name, value in policy._trained()}
    for name, parameter in policy._trained():
        for key, value in policy.optimizer.state[parameter].items():
            state[f"{name}/{key}"] = value.clone()
    return state


async def test_a_step_that_fails_on_everything_blames_no_row(tiny: Path, tmp_path: Path) -> None:
    """Weights that are no numbers: the run stops with a sentence, and no row is excluded for what it did not do."""
    settings = make_settings(tmp_path, tiny, min_spread=0.0)
    async with opened_backend(settings) as backend:
        policy: CpuPolicy = backend._backend._loaded.policy  # type: ignore[attr-defined]
        honest = [row(name, policy.tokenizer, f"BUY {name}", has_tokens=True) for name in ("ada", "ben")]
        prepared = await backend.prepare(make_batch(judged(honest, [0, 1])))
        for name, value in policy._fresh.items():
            policy._fresh[name] = torch.full_like(value, float("nan"))
        policy.reset()
        with pytest.raises(BackendError, match="lower --learning-rate") as refused:
            await backend.train(prepared, on_submitted=_submitted)
        assert not isinstance(refused.value, RowFaults)


# Preparing


class Refusing:
    """Raises for replies that say so, as a library would; scores all others."""

    def __init__(self, error: Exception, words: str = "CRASH") -> None:
        self.error, self.words = error, words

    async def score(self, requests: Any) -> list[Any]:
        from data_bridge.scoring import Scored

        if any(self.words in request.text for request in requests):
            raise self.error
        return [Scored((5, 2), (-1.0, -1.0)) for _ in requests]


@pytest.mark.parametrize("error", [TypeError("CRASH"), RuntimeError("CUDA is what CRASH said")], ids=["type", "text"])
async def test_a_row_that_makes_scoring_raise_costs_that_row(error: Exception) -> None:
    from tests.builders_training import make_trainee

    if str(error).startswith("CUDA"):
        error = ValueError(str(error))
    members = [
        make_trajectory(name, trajectory_id=name, steps=[make_step(calls=[make_call(reply)])])
        for name, reply in (("ada", "BUY"), ("mallory", "CRASH"), ("ben", "SELL"))
    ]
    batch = make_batch(judged(members, [0.0, 1.0, 0.4]))
    ready = await preparing.prepare(batch, make_trainee(min_spread=0.0), Refusing(error))
    assert [(one.agent_id, one.reason) for one in ready.exclusions] == [("mallory", Reason.ROW_FAULT)]
    assert "CRASH" not in ready.exclusions[0].detail
    assert ready.trainable_tokens == 4
    [group] = ready.groups
    rewards = [trajectory.reward for trajectory in group.trajectories]
    assert rewards == pytest.approx(advantages([0.0, 1.0, 0.4])), "its score stays in the mean"


@pytest.mark.parametrize(
    "error",
    [
        OSError("No space left on device"),
        MemoryError(),
        BackendError("The GPU is gone."),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        torch.OutOfMemoryError("out of memory"),
        ConnectionResetError(),
        TimeoutError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: f"{type(error).__name__} {error}"[:30],
)
async def test_what_the_machine_does_is_no_rows_fault(error: BaseException) -> None:
    assert not may_be_a_rows(error)


async def test_where_even_a_sound_row_fails_no_row_is_blamed() -> None:
    from data_bridge.art_converter import ConversionRules
    from tests.builders_training import make_trainee

    members = [make_trajectory(name, trajectory_id=name) for name in ("ada", "ben")]
    with pytest.raises(TypeError):
        await preparing.prepare(
            make_batch(judged(members, [0.0, 1.0])), make_trainee(min_spread=0.0), Refusing(TypeError(), "")
        )
    assert await convert_group([RewardedTrajectory(members[0], 1.0, is_above_mean=True)], ConversionRules("hindsight"))


def test_halving_finds_every_row_and_asks_seldom() -> None:
    asked = []

    def fault_of(rows: Any) -> BaseException | None:
        asked.append(list(rows))
        return ValueError() if set(rows) & {3, 60} else None

    assert [number for number, _ in bisected(range(64), fault_of)] == [3, 60]
    assert len(asked) < 30
    assert bisected([1, 2], lambda rows: ValueError() if len(rows) == 2 else None) == []


# The judge


@pytest.mark.parametrize("where", ["view", "assessment"])
async def test_a_row_that_makes_the_judge_raise_costs_that_row(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Before, the whole run ended with a traceback."""
    break_on_row(monkeypatch, where, "trajectory-2")
    judge = OutcomeJudge()
    group = make_group(-100.0, 0.0, 100.0)
    verdict = await judge.judge(group)
    assert isinstance(verdict, JudgedGroup)
    assert [one.trajectory_id for one in verdict.verdicts] == ["trajectory-1", "trajectory-3"]
    assert [(one.trajectory_id, one.reason) for one in verdict.left_out] == [("trajectory-2", Reason.ROW_FAULT)]
    alone = await judge.judge(make_group(-100.0, 0.0))
    assert isinstance(alone, JudgeFailure)
    assert [one.trajectory_id for one in alone.group.trajectories] == ["trajectory-1"]
    assert alone.reason is Reason.NO_COMPARABLE_PEER


def break_on_row(monkeypatch: pytest.MonkeyPatch, where: str, name: str) -> None:
    """A fault that our own code has with one row: there is none that we know of."""
    module, function = (view, "_trajectory_view") if where == "view" else (outcome, "assess")
    real = getattr(module, function)

    def broken(trajectory: AgentTrajectory, *rest: Any, **named: Any) -> Any:
        if trajectory.trajectory_id == name:
            raise KeyError("what the row said")
        return real(trajectory, *rest, **named)

    monkeypatch.setattr(module, function, broken)
