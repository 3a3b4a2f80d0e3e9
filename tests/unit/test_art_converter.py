"""What becomes a trained token: the agent's own words in the agent's own context, and nothing of the aftermath."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from data_bridge.art_converter import (
    ConversionRules,
    Converted,
    RewardedTrajectory,
    convert_group,
)
from data_bridge.models import (
    AgentTrajectory,
    ChatMessage,
    LLMCall,
    NewsEvent,
    PredictionOutcome,
    StockOutcome,
    WindowOutcomes,
)
from data_bridge.quality import Reason
from data_bridge.scoring import Scored, ScoreRequest
from tests.builders import WINDOW, make_action, make_call, make_step, make_trajectory
from tests.builders_training import IDENTITY, judged, make_batch, make_trainee, replying
from trainer.train.backends.prepare import prepare
from trainer.train.selection import advantages
from trainer.types import Group, JudgedGroup, Verdict

RULES = ConversionRules("hindsight", policy_step=3)


class FixedScorer:
    """Scores every reply as two tokens; remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ScoreRequest] = []

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        self.requests.extend(requests)
        return [Scored(request.token_ids or (7, 2), (-0.5,) * len(request.token_ids or (7, 2))) for request in requests]


def sampled(reply: str = "BUY ACME 10", **fields: Any) -> LLMCall:
    values: dict[str, Any] = {"completion_token_ids": [11, 12, 2], "completion_logprobs": [-0.1, -0.2, -0.3]}
    return make_call(reply, **(values | {"model": "hindsight@step3"} | fields))


def acting(*calls: LLMCall) -> AgentTrajectory:
    return make_trajectory(steps=[make_step(number, calls=[call]) for number, call in enumerate(calls)])


async def convert(trajectory: AgentTrajectory, rules: ConversionRules = RULES, **options: Any) -> Converted:
    above = options.pop("above", True)
    return (await convert_group([RewardedTrajectory(trajectory, 0.75, above)], rules, options.get("scorer")))[0]


def choice_tokens(choice: Any) -> list[tuple[str, float]]:
    return [(entry.token, entry.logprob) for entry in choice.logprobs.content]


async def test_each_trained_call_is_a_context_of_its_own_with_the_messages_it_saw() -> None:
    converted = (await convert(acting(sampled(prompt="first"), sampled("SELL", prompt="second"), sampled()))).trajectory
    contexts = [converted.messages_and_choices, *(more.messages_and_choices for more in converted.additional_histories)]
    assert [[message["content"] for message in context[:-1]] for context in contexts] == [
        ["You trade.", "first"],
        ["You trade.", "second"],
        ["You trade.", "ACME trades at 100. News: orders are up."],
    ]
    assert [context[-1].message.content for context in contexts] == ["BUY ACME 10", "SELL", "BUY ACME 10"]
    assert converted.reward == 0.75


async def test_tokens_and_log_probabilities_are_the_logs_end_of_sequence_included() -> None:
    converted = await convert(acting(sampled()))
    assert choice_tokens(converted.trajectory.messages_and_choices[-1]) == [
        ("token_id:11", -0.1),
        ("token_id:12", -0.2),
        ("token_id:2", -0.3),
    ]
    assert converted.counts.trainable == 3
    assert converted.reason is None


async def test_only_calls_of_the_chosen_purposes_are_trained() -> None:
    trajectory = acting(sampled("think", purpose="reasoning"), sampled("BUY"))
    converted = await convert(trajectory)
    assert converted.trajectory.messages_and_choices[-1].message.content == "BUY"
    assert converted.trajectory.additional_histories == []
    both = await convert(trajectory, ConversionRules("hindsight", purposes=("action", "reasoning")))
    assert len(both.trajectory.additional_histories) == 1
    none = await convert(acting(sampled(purpose="reasoning")))
    assert (none.reason, none.detail) == (Reason.NO_TRAINABLE_TOKENS, "no call with purpose action")


async def test_the_full_conversation_is_kept_with_its_tool_calls_and_without_the_reply_itself() -> None:
    tool_call = {"id": "1", "type": "function", "function": {"name": "price", "arguments": '{"ticker": "ACME"}'}}
    messages = [
        ChatMessage(role="system", content="You trade."),
        ChatMessage(role="assistant", content=None, tool_calls=[tool_call]),
        ChatMessage(role="tool", content="100", tool_call_id="1"),
        ChatMessage(role="user", content=[{"type": "text", "text": "Decide."}]),
        ChatMessage(role="assistant", content="BUY"),
    ]
    answer = {"id": "2", "type": "function", "function": {"name": "buy", "arguments": "{}"}}
    converted = await convert(acting(sampled("BUY", messages=messages, tool_calls=[answer])))
    *seen, reply = converted.trajectory.messages_and_choices
    assert [message["role"] for message in seen] == ["system", "assistant", "tool", "user"]
    assert seen[1]["tool_calls"] == [tool_call]
    assert seen[2]["tool_call_id"] == "1"
    assert seen[3]["content"] == "Decide."
    assert reply.message.tool_calls[0].function.name == "buy"


async def test_a_call_without_log_probabilities_is_scored_and_without_a_scorer_has_a_reason() -> None:
    trajectory = acting(make_call("BUY"))
    scorer = FixedScorer()
    scored = await convert(trajectory, scorer=scorer)
    assert choice_tokens(scored.trajectory.messages_and_choices[-1]) == [("token_id:7", -0.5), ("token_id:2", -0.5)]
    assert scored.counts.rescored == scored.counts.trainable == 2
    assert [(request.text, request.token_ids) for request in scorer.requests] == [("BUY", ())]
    assert (await convert(trajectory)).reason is Reason.NO_LOGPROBS


@pytest.mark.parametrize("logprobs", [None, [-0.1], [-0.1, math.nan, -0.3]], ids=["missing", "too few", "not a number"])
async def test_log_probabilities_that_do_not_match_their_tokens_are_not_used(logprobs: list[float] | None) -> None:
    scorer = FixedScorer()
    await convert(acting(sampled(completion_logprobs=logprobs)), scorer=scorer)
    assert [request.token_ids for request in scorer.requests] == [(11, 12, 2)]


async def test_what_an_old_policy_said_of_its_tokens_is_kept_and_the_current_one_is_asked_as_well() -> None:
    rules = ConversionRules("hindsight", policy_step=9, max_staleness=4)
    for name, is_stale in (("hindsight@step5", False), ("hindsight@step4", True)):
        scorer = FixedScorer()
        await convert(acting(sampled(model=name)), rules, scorer=scorer)
        [request] = scorer.requests
        assert (request.is_stale, request.logprobs) == (is_stale, (-0.1, -0.2, -0.3))
    alone = await convert(acting(sampled(model="hindsight@step4")), rules)
    assert (alone.reason, alone.counts.stale, alone.counts.rescored) == (None, 3, 0)
    assert choice_tokens(alone.trajectory.messages_and_choices[-1])[0] == ("token_id:11", -0.1)


@pytest.mark.parametrize(
    ("foreign", "above", "reason"),
    [
        ("positive", True, None),
        ("positive", False, Reason.FOREIGN_NEGATIVE),
        ("all", False, None),
        ("none", True, Reason.FOREIGN),
    ],
)
async def test_another_models_words_are_learnt_from_as_the_setting_says(
    foreign: Any, above: bool, reason: Reason | None
) -> None:
    rules = ConversionRules("hindsight", foreign=foreign)
    scorer = FixedScorer()
    converted = await convert(acting(sampled(model="gpt-9")), rules, above=above, scorer=scorer)
    assert converted.reason is reason
    if reason is None:
        assert converted.counts.foreign == converted.counts.trainable == 2
        assert scorer.requests[0].token_ids == ()  # its tokens are another vocabulary's; the text is scored
    else:
        assert isinstance(converted.trajectory.messages_and_choices[-1], dict)  # a plain turn: ART trains none of it
        assert converted.counts.trainable == 0


async def test_a_checkpoint_of_the_trainee_is_not_foreign_however_it_is_named() -> None:
    for name in ("hindsight", "hindsight@step3", "hindsight:step3", "wandb-artifact:///team/project/hindsight:step3"):
        converted = await convert(acting(sampled(model=name)), ConversionRules("hindsight", foreign="none"))
        assert converted.counts.trainable == 3, name


@pytest.mark.parametrize(
    ("temperature", "computed_at", "off"),
    [(1.0, None, 0), (0.7, None, 3), (0.7, 1.0, 3), (0.7, 0.7, 0), (None, None, 0)],
)
async def test_tokens_whose_temperature_differs_from_their_log_probabilities_are_counted(
    temperature: float | None, computed_at: float | None, off: int
) -> None:
    call = sampled(temperature=temperature, logprobs_temperature=computed_at)
    assert (await convert(acting(call))).counts.off_temperature == off


async def test_images_are_a_reason_not_a_crash() -> None:
    image = [ChatMessage(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}])]
    assert (await convert(acting(sampled(messages=image)))).reason is Reason.NO_TRAINABLE_TOKENS


# The group and the batch


def test_advantages_are_rewards_minus_the_mean_and_scaled_only_if_asked() -> None:
    assert advantages([1.0, 0.5, 0.0]) == [0.5, 0.0, -0.5]
    assert advantages([0.51, 0.5]) == pytest.approx([0.005, -0.005])
    assert advantages([0.51, 0.5], scale=True) == pytest.approx([1, -1], rel=1e-3)


async def test_groups_that_teach_nothing_are_counted_member_by_member() -> None:
    batch = make_batch(
        judged([replying("a", "BUY"), replying("b", "SELL")], [0.5, 0.5], group_id="flat"),
        judged([replying("c", "BUY")], [0.9], group_id="single"),
        judged(
            [replying("d", "BUY"), replying("e", "SELL"), replying("f", "HOLD")], [1.0, 0.5, 0.0], group_id="middle"
        ),
        judged([replying("g", "BUY"), replying("h", "SELL")], [0.51, 0.5], group_id="narrow"),
    )
    prepared = await prepare(batch, make_trainee(min_spread=0.02), scorer=FixedScorer())
    reasons = {exclusion.agent_id: exclusion.reason for exclusion in prepared.exclusions}
    assert reasons == {
        "a": Reason.NO_SPREAD,
        "b": Reason.NO_SPREAD,
        "c": Reason.NO_COMPARABLE_PEER,
        "e": Reason.NO_SPREAD,
        "g": Reason.NO_SPREAD,
        "h": Reason.NO_SPREAD,
    }
    assert [len(group) for group in prepared.groups] == [3]  # the one at the mean stays, for the mean
    assert prepared.trainable_tokens == 4


async def test_a_member_that_cannot_be_trained_still_counts_towards_the_mean() -> None:
    group = judged([replying("a", "BUY"), replying("b", "SELL", model="gpt-9"), replying("c", "HOLD")], [0.9, 0.0, 0.3])
    prepared = await prepare(make_batch(group), make_trainee(min_spread=0.0), scorer=FixedScorer())
    assert [exclusion.agent_id for exclusion in prepared.exclusions] == ["b"]
    rewards = [trajectory.reward for trajectory in prepared.groups[0]]
    assert advantages(rewards) == pytest.approx([0.5, -0.4, -0.1])


# Leakage


def leaky_group() -> tuple[JudgedGroup, list[str], list[str]]:
    """A group in which all that is known only afterwards carries a mark, and what the agent saw carries another."""
    marks: list[str] = []
    seen: list[str] = []

    def mark(what: str) -> str:
        marks.append(f"AFTERWARDS{len(marks)}{what}")
        return marks[-1]

    def shown(what: str) -> str:
        seen.append(f"SEEN{len(seen)}{what}")
        return seen[-1]

    moment = datetime(2026, 11, 2, 10, 59, tzinfo=UTC)
    outcomes = WindowOutcomes(
        stocks=(
            StockOutcome(
                mark("ticker"),
                424242.5,
                535353.5,
                26.19,
                mark("mood"),
                (NewsEvent(mark("news"), moment, mark("tone")),),
            ),
        ),
        predictions=(PredictionOutcome(mark("market"), mark("question"), mark("resolution"), 0.97531, 86421.0),),
    )
    marks.extend(["424242.5", "535353.5", "0.97531", "86421"])
    trajectories = []
    for agent in range(2):
        call = sampled(
            shown("reply"), prompt=shown("prompt"), system_prompt=shown("system"), reasoning=mark("reasoning")
        )
        action = make_action(
            reasoning=mark("why"), result={"fill": mark("fill")}, error=mark("error"), correctness=mark("correct")
        )
        trajectories.append(
            make_trajectory(
                f"agent-{agent}",
                steps=[make_step(calls=[call], action=action, pnl=717171.25), make_step(1, calls=[], pnl=717172.25)],
                lifetime_pnl=818181.75,
                final_balance=919191.5,
                final_status=mark("status"),
                agent_name=mark("name"),
                scenario_id=mark("scenario"),
            )
        )
    marks.extend(["717171", "717172", "818181", "919191"])
    verdicts = tuple(
        Verdict(trajectory.trajectory_id, 0.123457 + agent / 2, 0.0, mark("explanation"))
        for agent, trajectory in enumerate(trajectories)
    )
    marks.extend(["0.123457", "0.623457"])
    return (
        JudgedGroup(Group("group", WINDOW, tuple(trajectories), outcomes), verdicts, IDENTITY, mark("key")),
        marks,
        seen,
    )


async def test_nothing_that_is_known_only_afterwards_is_tokenised(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Promise 1. The text is what ART's own tokenising makes of the batch, token by token."""
    from art.preprocessing.tokenize import tokenize_trajectory_groups

    from tests.tiny_model import shared_tiny_model
    from trainer.inference.base_model import load_tokenizer

    tokenizer = load_tokenizer(shared_tiny_model(tmp_path_factory))
    group, marks, seen = leaky_group()
    for trajectory in group.group.trajectories:
        call = trajectory.steps[0].llm_calls[0]
        ids = [*tokenizer.encode(call.response, add_special_tokens=False), tokenizer.eos_token_id]
        assert call.completion_token_ids is not None
        assert call.completion_logprobs is not None
        call.completion_token_ids[:] = ids
        call.completion_logprobs[:] = [-1.0] * len(ids)
    prepared = await prepare(make_batch(group, policy_step=3), make_trainee(min_spread=0.0))
    results = list(
        tokenize_trajectory_groups(
            tokenizer, prepared.groups, allow_training_without_logprobs=False, scale_rewards=False
        )
    )
    assert len(results) == 2
    text = "".join(tokenizer.decode(result.token_ids) + result.chat for result in results)
    assert [mark for mark in marks if mark in text] == []
    assert [mark for mark in seen if mark not in text] == []  # the test can see: what was shown is there
    trained = [
        [token for token, used in zip(result.token_ids, result.assistant_mask, strict=True) if used]
        for result in results
    ]
    replies = {tokenizer.decode(tokens) for tokens in trained}
    assert replies == {mark + tokenizer.eos_token for mark in seen if "reply" in mark}


async def test_what_is_sent_to_a_remote_trainer_holds_nothing_of_the_aftermath_but_the_reward() -> None:
    group, marks, seen = leaky_group()
    prepared = await prepare(make_batch(group, policy_step=3), make_trainee(min_spread=0.0))
    sent = json.dumps([json.loads(member.model_dump_json(exclude={"reward"})) for member in prepared.groups[0]])
    assert [mark for mark in marks if mark in sent] == []
    assert all(mark in sent for mark in seen)


def test_converting_imports_art_only_when_it_is_called() -> None:
    import subprocess
    import sys

    program = (
        "import sys, data_bridge.art_converter, trainer.train.backends.prepare; "
        "print(sorted({'art', 'torch'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert done.stdout.strip() == "[]"
