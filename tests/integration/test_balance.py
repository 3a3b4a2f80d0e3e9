"""After a step no answer is preferred in every hour alike, and what differs between hours stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from data_bridge.models import ChatMessage
from data_bridge.scoring import Scored, ScoreRequest
from tests.builders import make_action, make_call, make_step, make_trajectory
from tests.builders_training import judged, make_batch, make_trainee
from tests.tiny_model import shared_tiny_model
from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy
from trainer.train.backends import balance as balancing
from trainer.train.backends.balance import ONE_SIDED, Alternatives, aim_of, alternatives_of, balance, pace
from trainer.train.backends.packing import pack
from trainer.train.backends.prepare import prepare
from trainer.types import JudgedGroup, PreparedBatch

EXAMPLES = (
    ChatMessage(role="system", content="Trade the news."),
    ChatMessage(role="user", content="ZETA up to 12"),
    ChatMessage(role="assistant", content="BUY ZETA"),
)


class OfPolicy:
    def __init__(self, policy: CpuPolicy) -> None:
        self._policy = policy

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return self._policy.score(requests)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> CpuPolicy:
    return CpuPolicy(shared_tiny_model(tmp_path_factory), rank=4, learning_rate=1e-3, seed=0)


@pytest.fixture
def policy(shared: CpuPolicy) -> CpuPolicy:
    """With an adapter that does something, the same in every test."""
    shared.reset()
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return shared


def hour(number: int, right: str, *answers: str) -> JudgedGroup:
    """One decision with the same examples as every other hour; those who gave the ``right`` answer were right."""
    prompt = (*EXAMPLES, ChatMessage(role="user", content=f"ACME up to {100 + number}"))
    rows = [
        make_trajectory(
            f"agent-{place}",
            trajectory_id=f"{number}-{place}",
            steps=[make_step(calls=[make_call(f"{answer} ACME", messages=list(prompt))], action=make_action(answer))],
        )
        for place, answer in enumerate(answers)
    ]
    return judged(rows, [0.9 if answer == right else 0.1 for answer in answers], group_id=f"hour-{number}")


async def prepared(policy: CpuPolicy, groups: Sequence[JudgedGroup]) -> PreparedBatch:
    return await prepare(make_batch(*groups), make_trainee(min_spread=0.0), scorer=OfPolicy(policy))


async def alternatives(policy: CpuPolicy, groups: Sequence[JudgedGroup]) -> list[Alternatives]:
    batch = await prepared(policy, groups)
    assert batch.history is not None
    return alternatives_of(batch.groups, batch.history, policy.tokenizer)


def preferences(policy: CpuPolicy, hours: Sequence[Alternatives]) -> torch.Tensor:
    """The log-odds of the first answer against the second, hour by hour, computed without any sharing."""
    found = []
    for one in hours:
        values = []
        for token in one.answers.values():
            tokens = torch.tensor([[*one.tokens, token]])
            alone = torch.zeros_like(tokens)
            positions = torch.arange(tokens.shape[1])[None]
            last = torch.tensor([tokens.shape[1] - 1])
            values.append(policy.likelihoods(tokens, positions, Layout(alone, alone), last).logprobs[0])
        found.append(values[0] - values[1])
    return torch.stack(found)


def leaning(policy: CpuPolicy, hours: Sequence[Alternatives]) -> torch.Tensor:
    """Teach the policy to prefer the first answer in every hour; its preferences then."""
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.02)
    while float((found := preferences(policy, hours)).mean().detach()) < 2.0:
        optimizer.zero_grad()
        (-found.mean()).backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        optimizer.step()
    return found.detach()


RIGHTS = ("BUY", "SELL", "BUY", "SELL", "SELL", "BUY")


async def test_over_the_hours_each_answer_is_given_as_often_as_it_was_right(policy: CpuPolicy) -> None:
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(RIGHTS)])
    before = leaning(policy, hours)
    metrics = balance(policy, aim_of(policy, hours, None))
    after = preferences(policy, hours).detach()
    assert metrics["lean"] == pytest.approx(float(abs(before.sigmoid().mean() - 0.5)), abs=1e-4)
    assert metrics["lean"] > 0.3
    assert float(after.sigmoid().mean()) == pytest.approx(0.5, abs=0.1)
    assert metrics["lean_left"] == pytest.approx(float(abs(after.sigmoid().mean() - 0.5)), abs=1e-4)


async def test_what_differs_between_hours_stays(policy: CpuPolicy) -> None:
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(RIGHTS)])
    before = leaning(policy, hours)
    balance(policy, aim_of(policy, hours, None))
    after = preferences(policy, hours).detach()
    moved = float((before.mean() - after.mean()).abs())
    differences = (before - before.mean()) - (after - after.mean())
    assert float(differences.abs().max()) < 0.2 * moved


async def test_a_rarer_answer_keeps_the_share_of_the_credit_that_it_gained(policy: CpuPolicy) -> None:
    """Credit weighs an hour three times at most: of eight hours two for SELL count as much as two thirds of six."""
    rights = ["BUY"] * 18 + ["SELL"] * 2
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(rights)])
    gained = {answer: sum(one.gain for one in hours if one.right == answer) for answer in {one.right for one in hours}}
    share = next(value for answer, value in gained.items() if answer == hours[0].right) / sum(gained.values())
    assert 0.6 < share < 0.7
    leaning(policy, hours)
    balance(policy, aim_of(policy, hours, None))
    weights = torch.tensor([one.gain for one in hours])
    found = float((preferences(policy, hours).detach().sigmoid() * weights).sum() / weights.sum())
    assert found == pytest.approx(share, abs=0.1)


async def test_what_luck_explains_is_left_alone(policy: CpuPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who is certain of every hour, in a step in which one hour of twelve went against the news."""
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(RIGHTS * 2)])
    aim = aim_of(policy, hours, None)
    certain = np.array([[0.0 if answer == one.right else -9.0 for answer in aim.goal] for one in hours])
    certain[0] = certain[0][::-1]
    monkeypatch.setattr(balancing, "_logprobs", lambda *_: certain)
    kept = [parameter.detach().clone() for parameter in policy.parameters()]
    assert balance(policy, aim)["lean"] == pytest.approx(1 / 12, abs=0.01)
    assert all(torch.equal(one, other) for one, other in zip(policy.parameters(), kept, strict=True))
    assert pace(policy, aim) == pytest.approx(2 / 12, abs=0.01), "what is left is luck, and gets a small step"


async def test_a_step_is_as_large_as_what_is_left_to_be_learnt(policy: CpuPolicy) -> None:
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(RIGHTS)])
    guessing = pace(policy, aim_of(policy, hours, None))
    leaning(policy, hours)
    assert 0.7 < guessing <= 1.0
    assert pace(policy, aim_of(policy, hours, None)) > 0.9, "to say one thing is as bad as to guess"
    assert pace(policy, aim_of(policy, [], None)) == 1.0


async def test_an_hour_whose_right_answer_was_right_nowhere_else_does_not_stop_the_step(policy: CpuPolicy) -> None:
    groups = [hour(number, right, "BUY", "SELL") for number, right in enumerate(RIGHTS)]
    without = await alternatives(policy, groups)
    hours = await alternatives(policy, [*groups, hour(6, "HOLD", "BUY", "SELL", "HOLD")])
    aim = aim_of(policy, hours, None)
    lucky = hours[-1].right
    assert lucky not in aim.goal
    assert lucky in {one.right for one in aim.hours}, "the hour itself offers answers that count"
    assert pace(policy, aim) == pytest.approx(pace(policy, aim_of(policy, without, None)), abs=0.05)
    assert "lean" in balance(policy, aim)


ONE_SIDE = pytest.mark.parametrize(
    "rights", [("BUY",) * 6, ("BUY", "BUY", "BUY", "BUY", "BUY", "SELL")], ids=["one answer", "one lucky hour"]
)


@ONE_SIDE
async def test_if_one_answer_was_right_in_all_hours_the_answers_keep_their_shares(
    policy: CpuPolicy, rights: Sequence[str]
) -> None:
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(rights)])
    before = preferences(policy, hours).detach()
    aim = aim_of(policy, hours, 0)
    leaning(policy, hours)  # what such a step would teach
    metrics = balance(policy, aim)
    assert metrics[ONE_SIDED] == 1
    assert float(preferences(policy, hours).detach().mean()) == pytest.approx(float(before.mean()), abs=0.45)


@ONE_SIDE
@pytest.mark.parametrize("before", [None, 12])
async def test_if_it_was_never_otherwise_that_answer_may_be_learnt(
    policy: CpuPolicy, rights: Sequence[str], before: int | None
) -> None:
    kept = [parameter.detach().clone() for parameter in policy.parameters()]
    hours = await alternatives(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(rights)])
    assert balance(policy, aim_of(policy, hours, before)).keys() == {ONE_SIDED}
    assert all(torch.equal(one, other) for one, other in zip(policy.parameters(), kept, strict=True))


async def test_a_row_with_a_prompt_of_its_own_does_not_silence_its_group(policy: CpuPolicy) -> None:
    groups = [hour(0, "BUY", "BUY", "SELL", "BUY", "SELL")]
    [expected] = await alternatives(policy, groups)
    stranger = make_trajectory(
        "stranger",
        trajectory_id="0-stranger",
        steps=[make_step(calls=[make_call("SELL ACME", prompt="another")], action=make_action("SELL"))],
    )
    with_it = judged([*groups[0].group.trajectories, stranger], [*groups[0].scores, 0.1], group_id="hour-0")
    [found] = await alternatives(policy, [with_it])
    assert (found.tokens, found.answers, found.right) == (expected.tokens, expected.answers, expected.right)


async def test_hours_in_which_all_say_the_same_say_nothing(policy: CpuPolicy) -> None:
    assert await alternatives(policy, [hour(0, "BUY", "BUY", "BUY")]) == []


async def test_what_precedes_the_last_message_is_read_once_and_changes_no_likelihood(policy: CpuPolicy) -> None:
    batch = await prepared(policy, [hour(number, right, "BUY", "SELL") for number, right in enumerate(RIGHTS)])
    sequences = pack(batch.groups, policy.tokenizer, scale_rewards=False, seed="beginnings")
    beginnings = {tokens for sequence in sequences for tokens in sequence.beginnings.values()}
    assert len(beginnings) == 1, "all hours begin alike"
    found = logged = 0.0
    for sequence in sequences:
        inputs = sequence.inputs
        assert int(inputs["input_pos"].min()) == len(next(iter(beginnings)))
        layout = Layout(inputs["group_ids"], inputs["parent_ids"], policy.read(sequence.beginnings))
        targets = inputs["assistant_mask"][0].nonzero()[:, 0]
        with torch.no_grad():
            read = policy.likelihoods(sequence.tokens, inputs["input_pos"], layout, targets)
        found += float(read.logprobs.sum())
        logged += float(inputs["logprobs"].nansum())
    assert found == pytest.approx(logged, abs=1e-3)  # scored before, each reply after its whole prompt


def test_a_beginning_is_read_anew_after_the_weights_have_changed(policy: CpuPolicy) -> None:
    tokens = (1, 5, 9, 20)
    [first] = policy.read({0: tokens}).values()
    assert policy.read({0: tokens})[0] is first
    with policy.as_base():
        base = policy.read({0: tokens})[0]
    with torch.no_grad():
        policy.parameters()[0].add_(0.1)
    changed = policy.read({0: tokens})[0]
    assert not torch.equal(changed[-1][0], first[-1][0])
    assert not torch.equal(base[-1][0], first[-1][0])
