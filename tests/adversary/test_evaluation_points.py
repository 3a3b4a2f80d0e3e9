"""What an agent logged cannot stop an evaluation: a point that a policy cannot be asked at is left out for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from data_bridge.quality import CheckedWindow
from tests.builders import make_call, make_step, make_trajectory, make_window
from tests.builders_evaluation import FixedPolicy
from tests.fakes.chat_endpoint import ChatEndpoint, completion
from tests.tiny_model import shared_tiny_model
from tests.unit.test_blind_trial import ReadingJudge
from trainer.evaluate.blind_trial import LoggedPolicy, ModelPolicy, agents_temperature, compare_policies
from trainer.evaluate.comparison import Contestant, TrialPlan, TrialResult
from trainer.evaluate.decision_points import DecisionPoint
from trainer.evidence import Role
from trainer.inference.chat_models import EndpointModel, Engine
from trainer.types import ChatModel, Completion
from trainer.world.agents import EXPLORER


def window(*calls: Any) -> CheckedWindow:
    """A window in which each agent was asked once."""
    rows = [
        make_trajectory(f"agent-{number}", trajectory_id=f"row-{number}", steps=[make_step(calls=[call])])
        for number, call in enumerate(calls)
    ]
    made = make_window(trajectories=rows)
    return CheckedWindow(made, made.trajectories, ())


async def trial(window: CheckedWindow, model: ChatModel) -> TrialResult:
    """The evil agent's point comes with the others'; candidate and baseline are the model and the log."""
    policies: dict[Role, Contestant] = {
        Role.CANDIDATE: ModelPolicy(model),
        Role.INCUMBENT: FixedPolicy(["SELL"]),
        Role.BASELINE: LoggedPolicy(),
    }
    return await compare_policies([window], policies, ReadingJudge(), TrialPlan(points_per_window=8, samples=2))


EVIL = {
    "a prompt longer than the context": make_call(prompt="up and down " * 5_000),
    "a role that no template takes": make_call(messages=[ChatMessage(role="\u0001", content="x" * 20_000)]),
    "tool calls that are none": make_call(
        messages=[ChatMessage("user", "x " * 9_000), ChatMessage("assistant", "", tool_calls=[{"function": 7}])]
    ),
}


@pytest.mark.parametrize("name", EVIL)
async def test_a_point_that_the_model_cannot_be_asked_at_costs_that_point(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Before, the evaluation ended there, at every attempt: nothing could be promoted any more."""
    engine = Engine(shared_tiny_model(tmp_path_factory), threads=1)
    honest = [make_call(prompt=f"ACME trades at {price}.", max_tokens=4) for price in (100, 101, 102)]
    result = await trial(window(honest[0], EVIL[name], *honest[1:]), engine.model(None, "hindsight@step0"))
    await engine.close()
    assert sorted(one.point.trajectory.trajectory_id for one in result.compared) == ["row-0", "row-2", "row-3"]
    assert result.left_out == {"too_long": 1}
    assert result.asked == 4
    for one in result.compared:
        assert {role: len(replies) for role, replies in one.replies.items()} == dict.fromkeys(one.replies, 2)


class Picky(ChatEndpoint):
    """Refuses long prompts with status 400, as vLLM does."""

    def __init__(self) -> None:
        self.with_logprobs: list[bool] = []
        super().__init__()

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        if len(body["messages"][-1]["content"]) > 1_000:
            return 400, {"error": {"message": "maximum context length"}}
        self.with_logprobs.append(bool(body.get("logprobs")))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "BUY"}}
        return 200, completion(body["model"], [choice] * body["n"])


async def test_an_endpoint_that_refuses_one_prompt_is_asked_the_others_with_log_probabilities() -> None:
    """Before, one refusal ended the evaluation, and turned log-probabilities off for all later requests."""
    with Picky() as server:
        model = EndpointModel(server.base_url, "m", "none")
        result = await trial(
            window(EVIL["a prompt longer than the context"], make_call(), make_call(prompt="b")), model
        )
        await model.close()
    assert (len(result.compared), result.left_out) == (2, {"too_long": 1})
    assert server.with_logprobs == [True, True]


class Raises:
    """A contestant of which one answer cannot be used."""

    name = "raises"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        if point.trajectory.trajectory_id == "row-1":
            raise KeyError("what the row said")
        return [Completion("BUY")] * samples


async def test_any_fault_at_a_point_costs_it_for_all_contestants_alike() -> None:
    policies: dict[Role, Contestant] = {Role.CANDIDATE: FixedPolicy(["BUY"]), Role.INCUMBENT: Raises()}
    calls = [make_call(prompt=f"ACME trades at {price}.") for price in (100, 101, 102)]
    plan = TrialPlan(points_per_window=8, samples=2)
    result = await compare_policies([window(*calls)], policies, ReadingJudge(), plan)
    assert (len(result.compared), result.left_out) == (2, {"row_fault": 1})


async def test_where_no_point_can_be_asked_the_evaluation_says_so() -> None:
    with Picky() as server:
        model = EndpointModel(server.base_url, "m", "none")
        with pytest.raises(BackendError, match=r"No policy could be asked at any of 1 decision point .*1 too_long"):
            await trial(window(EVIL["a prompt longer than the context"]), model)
        await model.close()


@pytest.mark.parametrize("claimed", [1e308, -1.0, float("nan"), 1.9])
def test_one_agents_many_calls_do_not_set_the_temperature(claimed: float) -> None:
    honest = [make_call(temperature=0.7), make_call(temperature=0.7)]
    checked = window(*honest, make_call())
    loud = make_trajectory("loud", steps=[make_step(calls=[make_call(temperature=claimed)] * 50)])
    checked = CheckedWindow(checked.window, (*checked.usable[:2], loud), ())
    assert agents_temperature([checked], TrialPlan()) == 0.7
    alone = CheckedWindow(checked.window, (loud,), ())
    assert agents_temperature([alone], TrialPlan()) == (claimed if claimed == 1.9 else 1.0)


def test_replies_that_exploration_chose_do_not_set_the_temperature() -> None:
    """Half of the simulated agents explore: their rows say 0, and nobody sampled them."""
    own = make_trajectory("own", steps=[make_step(calls=[make_call(temperature=1.0)])])
    chosen = [
        make_trajectory(f"explorer-{place}", steps=[make_step(calls=[make_call(model=EXPLORER, temperature=0.0)])])
        for place in range(3)
    ]
    checked = CheckedWindow(window(make_call()).window, (own, *chosen), ())
    assert agents_temperature([checked], TrialPlan(drawn=(EXPLORER,))) == 1.0
    assert agents_temperature([checked], TrialPlan()) == 0.0
