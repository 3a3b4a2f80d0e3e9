"""A model that says the same in every hour learns to tell hours apart again, from the next period's log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from data_bridge.models import ChatMessage
from tests.builders import make_action, make_call, make_step, make_trajectory
from tests.builders_training import judged, make_batch, make_settings, opened_backend
from tests.tiny_model import shared_tiny_model
from trainer.inference.checkpoints import StoredStep, store_of
from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy
from trainer.types import JudgedGroup, TrainingBackend
from trainer.world.agents import EXPLORER

NEWS = {"BUY": ("soars", "wins", "gains", "climbs"), "SELL": ("sinks", "fails", "loses", "slumps")}
STEPS = 10


def prompt(number: int, word: str) -> tuple[ChatMessage, ...]:
    return (
        ChatMessage(role="system", content="Trade the news."),
        ChatMessage(role="user", content=f"{100 + number}" + f" {word}" * 8),  # loud: two random layers must hear it
    )


def hour(number: int, right: str) -> JudgedGroup:
    """Explorers of both answers, and the model itself, which always buys; the ``right`` answer was right."""
    word = NEWS[right][(number // 2 + number // 8) % len(NEWS[right])]
    answers = [("BUY", EXPLORER), ("SELL", EXPLORER), ("BUY", "hindsight"), ("BUY", "hindsight")]
    rows = [
        make_trajectory(
            f"agent-{place}",
            trajectory_id=f"{number}-{place}",
            steps=[
                make_step(
                    calls=[make_call(f"{answer} ACME", messages=list(prompt(number, word)), model=model)],
                    action=make_action(answer),
                )
            ],
        )
        for place, (answer, model) in enumerate(answers)
    ]
    scores = [0.9 if answer == right else 0.1 for answer, _ in answers]
    return judged(rows, scores, group_id=f"hour-{number}")


def preferences(policy: CpuPolicy) -> dict[str, torch.Tensor]:
    """The log-odds of BUY against SELL after each word, by what the word is good for."""
    first = [policy.tokenizer(verb, add_special_tokens=False).input_ids[0] for verb in ("BUY", "SELL")]
    found = {}
    for right, words in NEWS.items():
        odds = []
        for word in words:
            said = [message.as_dict() for message in prompt(7, word)]
            tokens = policy.tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ]
            values = []
            for token in first:
                whole = torch.tensor([[*tokens, token]])
                alone = torch.zeros_like(whole)
                place = torch.tensor([whole.shape[1] - 1])
                layout = Layout(alone, alone)
                positions = torch.arange(whole.shape[1])[None]
                values.append(policy.likelihoods(whole, positions, layout, place).logprobs[0])
            odds.append(values[0] - values[1])
        found[right] = torch.stack(odds)
    return found


def collapsed_checkpoint(home: Path, base: Path) -> CpuPolicy:
    """Step 1: an adapter that prefers BUY by five nats, whatever the news."""
    policy = CpuPolicy(base, rank=4, learning_rate=1e-3, seed=0)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.2)
    while float((odds := torch.cat(list(preferences(policy).values()))).min().detach()) < 5.0:
        optimizer.zero_grad()
        (-odds.mean()).backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        optimizer.step()
    store = store_of(home, "hindsight")
    store.save(StoredStep(1, "collapsed", 1, str(base), {}, {"one_sided_steps": 0.0}, 0), policy.save)
    return policy


async def train(backend: TrainingBackend, groups: Sequence[JudgedGroup], number: int) -> None:
    async def nothing(receipt: str) -> None:
        pass

    prepared = await backend.prepare(make_batch(*groups, batch_id=f"batch-{number}", policy_step=number))
    await backend.train(prepared, on_submitted=nothing)


RIGHTS = ("BUY", "SELL", "BUY", "BUY", "SELL", "SELL", "BUY", "SELL")


async def trained(home: Path, base: Path, steps: int, *, balanced: bool) -> dict[str, torch.Tensor]:
    """What a collapsed model prefers after further steps."""
    policy = collapsed_checkpoint(home, base)
    assert float(preferences(policy)["SELL"].detach().min()) > 3, "it buys after bad news too"
    settings = make_settings(home, base, learning_rate=0.01, balance_answers=balanced)
    async with opened_backend(settings) as backend:
        for number in range(1, steps + 1):
            await train(backend, [hour(8 * number + place, right) for place, right in enumerate(RIGHTS)], number)
    policy.load(store_of(home, "hindsight").path(steps + 1))
    return {right: odds.detach() for right, odds in preferences(policy).items()}


@pytest.mark.parametrize("balanced", [True, False])
async def test_after_four_steps_a_collapsed_model_gives_both_answers_again(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, balanced: bool
) -> None:
    after = await trained(tmp_path, shared_tiny_model(tmp_path_factory), 4, balanced=balanced)
    bought = float(torch.cat(list(after.values())).sigmoid().mean())
    assert 0.3 < bought < 0.7 if balanced else bought > 0.9


async def test_a_collapsed_model_learns_again_to_tell_hours_apart(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    after = await trained(tmp_path, shared_tiny_model(tmp_path_factory), STEPS, balanced=True)
    assert (after["SELL"] < 0).all()
    assert (after["BUY"] > 0).all()
