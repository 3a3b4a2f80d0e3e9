"""A trial is fair: the same questions for all, no names for the judge, no score without a verdict."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from data_bridge.errors import JudgeError, NotEnoughData
from data_bridge.models import ChatMessage
from data_bridge.quality import CheckedWindow, Reason
from tests.builders import WINDOW, make_call, make_step, make_trajectory, make_window
from tests.builders_evaluation import (
    FixedPolicy,
    SkilledPolicy,
    UpOrDownReplay,
    make_checkpoint,
    up_or_down_windows,
)
from trainer.evaluate.blind_trial import LoggedPolicy, ModelPolicy, compare_policies
from trainer.evaluate.comparison import Contestant as Policy
from trainer.evaluate.comparison import TrialPlan as Plan
from trainer.evaluate.comparison import summarise
from trainer.evaluate.decision_points import DecisionPoint, alias_of, decision_points, with_reply
from trainer.evidence import Role, from_json, to_json
from trainer.judge.outcome import OutcomeJudge
from trainer.judge.view import view_of
from trainer.types import Completion, Group, JudgedGroup, JudgeFailure, JudgeIdentity, Verdict

READER = JudgeIdentity("reader", "r", "1", "1", is_llm=True)


@dataclass
class ReadingJudge:
    """Scores a reply by its words, remembers every group it saw, and may fail on some."""

    scores: dict[str, float] = field(default_factory=dict)
    fails_on: str = "never"
    groups: list[Group] = field(default_factory=list)
    identity: JudgeIdentity = READER

    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        self.groups.append(group)
        if self.fails_on in group.window_id:
            return JudgeFailure(group, Reason.JUDGE_UNAVAILABLE, "away", cost_usd=0.5)
        replies = [(own.trajectory_id, own.steps[-1].llm_calls[-1].response) for own in group.trajectories]
        verdicts = tuple(
            Verdict(alias, self.scores.get(text, 0.5), 0.0, f"because of {text}") for alias, text in replies
        )
        return JudgedGroup(group, verdicts, self.identity, "key", cost_usd=1.0)

    async def close(self) -> None: ...


def _policies(candidate: str = "BUY", incumbent: str = "SELL") -> dict[Role, FixedPolicy]:
    return {Role.CANDIDATE: FixedPolicy([candidate], "newer"), Role.INCUMBENT: FixedPolicy([incumbent], "older")}


async def test_the_judge_sees_nothing_that_says_whose_reply_it_is() -> None:
    judge = ReadingJudge()
    policies = _policies("HOLD", "HOLD")
    await compare_policies(up_or_down_windows(8), policies, judge, Plan(samples=2))
    for group in judge.groups:
        assert len({msgspec.json.encode(own.steps) for own in group.trajectories}) == 1, "same reply, same content"
        shown = repr(group)
        for telltale in ("candidate", "incumbent", "newer", "older", "hindsight", "Agent-"):
            assert telltale not in shown


async def test_the_order_has_nothing_to_do_with_who_is_who() -> None:
    judge = ReadingJudge()
    await compare_policies(up_or_down_windows(60), _policies(), judge, Plan(samples=1))
    first = [group.trajectories[0].steps[0].llm_calls[0].response for group in judge.groups]
    assert 0.3 < first.count("BUY") / len(first) < 0.7


async def test_every_policy_is_asked_the_same_questions_and_differences_are_taken_there() -> None:
    judge = ReadingJudge({"BUY": 0.9, "SELL": 0.2})
    outcome = await compare_policies(up_or_down_windows(10), _policies(), judge, Plan(points_per_window=2, samples=4))
    assert outcome.asked == len(outcome.compared) == 20
    evaluation = summarise(
        outcome,
        _policies(),
        Plan(samples=4),
        judge,
        candidate=make_checkpoint(2).as_release(),
        incumbent=make_checkpoint(1).as_release(),
    )
    gain = evaluation.score_difference
    assert (round(gain.mean, 6), gain.windows) == (0.7, 10)
    assert evaluation.comparisons[0].win_rate.mean == 1.0
    assert evaluation.judge_cost_usd == 20.0
    assert from_json(to_json(evaluation)) == evaluation
    assert evaluation.best is not None
    assert evaluation.best.replies[0].explanation == "because of BUY"


async def test_samples_that_do_not_fit_one_group_are_spread_over_several_with_everybody_in_each() -> None:
    judge = ReadingJudge()
    policies = {**_policies(), Role.BASE: FixedPolicy(["HOLD"], "base")}
    await compare_policies(up_or_down_windows(1, agents=1), policies, judge, Plan(samples=4, max_group=8))
    assert [len(group.trajectories) for group in judge.groups] == [6, 6]
    assert len({own.trajectory_id for group in judge.groups for own in group.trajectories}) == 12


async def test_the_same_words_get_the_same_score_however_they_were_judged() -> None:
    class Moody(ReadingJudge):
        async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
            judged = await super().judge(group)
            assert isinstance(judged, JudgedGroup)
            mood = random.Random(group.group_id)
            verdicts = tuple(Verdict(one.trajectory_id, mood.random(), 0.0, "") for one in judged.verdicts)
            return JudgedGroup(group, verdicts, self.identity, "key")

    policies = _policies("HOLD", "HOLD")
    outcome = await compare_policies(up_or_down_windows(8), policies, Moody(), Plan(samples=2))
    for at in outcome.compared:
        assert len({reply.score for replies in at.replies.values() for reply in replies}) == 1


async def test_a_point_without_a_verdict_is_left_out_for_all_and_counted() -> None:
    judge = ReadingJudge(fails_on="T03")
    outcome = await compare_policies(up_or_down_windows(10), _policies(), judge, Plan(points_per_window=1, samples=1))
    assert len(outcome.compared) == 9
    assert outcome.left_out == {"judge_unavailable": 1}
    assert outcome.judge_cost_usd == 9.5, "a failed call keeps its cost"


async def test_a_judge_that_fails_too_often_is_an_error_and_not_a_result() -> None:
    with pytest.raises(JudgeError, match="10 of 10 decision points"):
        await compare_policies(
            up_or_down_windows(10), _policies(), ReadingJudge(fails_on="T"), Plan(points_per_window=1)
        )


async def test_valid_error_and_blocked_replies_are_told_apart() -> None:
    policies = {
        Role.CANDIDATE: FixedPolicy(["BUY", "FORBIDDEN", "hm", "SELL"], "new"),
        Role.INCUMBENT: FixedPolicy(["BUY"], "old"),
    }
    judge, plan = OutcomeJudge(), Plan(samples=4)
    outcome = await compare_policies(up_or_down_windows(8), policies, judge, plan, UpOrDownReplay())
    evaluation = summarise(outcome, policies, plan, judge, candidate=make_checkpoint(2).as_release(), incumbent=None)
    figures = evaluation.of(Role.CANDIDATE)
    assert figures is not None
    assert figures.valid_rate is not None
    assert figures.blocked_rate is not None
    assert (figures.valid_rate.mean, figures.error_rate.mean, figures.blocked_rate.mean) == (0.5, 0.25, 0.25)
    assert figures.pnl is not None
    assert figures.pnl.mean == 0.0
    assert evaluation.score_pnl_correlation is not None


async def test_without_a_replay_an_empty_or_cut_off_reply_is_an_error_and_the_rest_is_unknown() -> None:
    @dataclass
    class Rambling(FixedPolicy):
        async def replies(
            self, point: DecisionPoint, *, samples: int, temperature: float, seed: int
        ) -> list[Completion]:
            return [Completion("and then", finish_reason="length"), Completion("BUY")]

    policies = {Role.CANDIDATE: Rambling(["x"], "new"), Role.INCUMBENT: FixedPolicy([" ", "BUY"], "old")}
    judge, plan = ReadingJudge(), Plan(samples=2)
    outcome = await compare_policies(up_or_down_windows(8), policies, judge, plan)
    evaluation = summarise(outcome, policies, plan, judge, candidate=make_checkpoint(2).as_release(), incumbent=None)
    for role in (Role.CANDIDATE, Role.INCUMBENT):
        figures = evaluation.of(role)
        assert figures is not None
        assert figures.error_rate.mean == 0.5
        assert (figures.valid_rate, figures.blocked_rate, figures.pnl) == (None, None, None)


async def test_the_offline_judge_does_not_judge_what_cannot_be_rebuilt() -> None:
    with pytest.raises(NotEnoughData, match="EVAL_JUDGE_MODEL"):
        await compare_policies(up_or_down_windows(8), _policies(), OutcomeJudge(), Plan())


async def test_windows_without_a_call_of_the_wanted_purpose_are_too_little() -> None:
    with pytest.raises(NotEnoughData, match="purpose response"):
        await compare_policies(up_or_down_windows(8), _policies(), ReadingJudge(), Plan(purposes=("response",)))


async def test_models_are_asked_with_the_logged_messages_at_the_usual_temperature() -> None:
    asked: list[tuple[Sequence[ChatMessage], float, int, int]] = []

    class Echo:
        name = "echo"

        async def chat(
            self,
            messages: Sequence[ChatMessage],
            *,
            n: int = 1,
            temperature: float = 1.0,
            max_tokens: int = 64,
            stop: Sequence[str] = (),
            seed: int | None = None,
        ) -> list[Completion]:
            asked.append((messages, temperature, max_tokens, n))
            return [Completion("BUY")] * n

        async def close(self) -> None: ...

    steps = [
        make_step(0, calls=[make_call(temperature=heat, max_tokens=12, prompt=f"p{heat}")]) for heat in (0.7, 0.7, 0.0)
    ]
    trajectories = [make_trajectory(f"a{n}", steps=[step]) for n, step in enumerate(steps)]
    window = make_window(trajectories=trajectories)
    policies: dict[Role, Policy] = {Role.CANDIDATE: ModelPolicy(Echo()), Role.INCUMBENT: LoggedPolicy()}
    await compare_policies([CheckedWindow(window, window.trajectories, ())], policies, ReadingJudge(), Plan(samples=3))
    assert {(heat, most, n) for _, heat, most, n in asked} == {(0.7, 12, 3)}
    assert [messages[-1].content for messages, *_ in asked] in (["p0.7", "p0.0"], ["p0.0", "p0.7"]), (
        "each question once"
    )


# Decision points


def test_one_point_of_every_agent_comes_before_a_second_of_any() -> None:
    trajectories = [
        make_trajectory(f"agent-{n}", steps=[make_step(k, calls=[make_call(prompt=f"{n} sees {k}")]) for k in range(3)])
        for n in range(3)
    ]
    window = make_window(trajectories=trajectories)
    checked = CheckedWindow(window, window.trajectories, ())
    points = decision_points(checked, purposes=("action",), max_points=3, seed=0)
    assert len({point.trajectory.agent_id for point in points}) == 3
    assert points == decision_points(checked, purposes=("action",), max_points=3, seed=0)
    assert len(decision_points(checked, purposes=("action",), max_points=99, seed=0)) == 9


def test_the_decision_is_the_last_call_of_the_wanted_purpose_in_its_step() -> None:
    calls = [make_call(purpose="action", prompt="first"), make_call(purpose="action"), make_call(purpose="evaluation")]
    window = make_window(trajectories=[make_trajectory(steps=[make_step(0, calls=calls)])])
    [point] = decision_points(
        CheckedWindow(window, window.trajectories, ()), purposes=("action",), max_points=9, seed=0
    )
    assert point.call_index == 1


def test_a_reply_that_its_writer_appended_to_the_log_is_neither_asked_with_nor_shown() -> None:
    asked = [ChatMessage(role="user", content="ACME trades at 100")]
    call = make_call("LOGGED", messages=[*asked, ChatMessage(role="assistant", content="LOGGED")])
    drawn = make_call(messages=[*asked, ChatMessage(role="assistant", content=[{"type": "image_url"}])])
    window = make_window(trajectories=[make_trajectory(steps=[make_step(0, calls=[call, drawn])])])
    [point] = decision_points(
        CheckedWindow(window, window.trajectories, ()), purposes=("action",), max_points=9, seed=0
    )
    assert point.messages == asked
    assert "LOGGED" not in repr(with_reply(point, "BUY", None, alias="x"))


def test_what_followed_on_the_logged_reply_is_not_shown_with_another() -> None:
    trajectory = make_trajectory(
        steps=[
            make_step(
                0, pnl=100.0, calls=[make_call("LOGGED-REPLY", reasoning="LOGGED-THOUGHT", model="LOGGED-MODEL")]
            ),
            make_step(1, pnl=180.0, calls=[make_call("LATER")]),
        ],
        final_status="LOGGED-STATUS",
        final_balance=123456.0,
        lifetime_pnl=190.0,
    )
    point = DecisionPoint(trajectory, 0, 0, make_window().outcomes)
    other = with_reply(point, "BUY", UpOrDownReplay().play(point, "BUY"), alias="x")
    shown = repr(other)
    for telltale in ("LOGGED", "LATER", "123456", "190", "agent-1"):
        assert telltale not in shown
    assert other.window_pnl == 2.0
    assert other.content_hash != with_reply(point, "SELL", None, alias="x").content_hash
    assert with_reply(point, "BUY", None, alias="x").window_pnl is None


def test_what_a_replay_found_is_a_result_and_no_claim() -> None:
    trajectory = make_trajectory(steps=[make_step(0, pnl=100.0)], lifetime_pnl=9_999.0)
    point = DecisionPoint(trajectory, 0, 0, make_window().outcomes)
    replayed = [with_reply(point, reply, UpOrDownReplay().play(point, reply), alias=reply) for reply in ("BUY", "SELL")]
    for member, profit in zip(replayed, (2, -2), strict=True):
        body = json.loads(view_of(Group("group", WINDOW, (member,), point.outcomes)).trajectories[0].whole)
        assert body["result"] == {"profit_in_this_window": profit, "profit_percent_of_balance": profit / 10}
        assert body["claimed"] == {"starting_balance": 1000}
        assert "price" not in body["steps"][0]["claimed"]
    unknown = with_reply(point, "BUY", None, alias="x")
    body = json.loads(view_of(Group("group", WINDOW, (unknown,), point.outcomes)).trajectories[0].whole)
    assert "result" not in body
    assert "profit_in_this_window" not in body["claimed"]
    assert (body["steps"][0]["said"], "result" in body["steps"][0]) == ("BUY", False)


def test_an_alias_is_the_same_every_time_and_says_nothing() -> None:
    point = DecisionPoint(make_trajectory(trajectory_id="t"), 0, 0, make_window().outcomes)
    assert alias_of(point, Role.CANDIDATE, 0, 1) == alias_of(point, Role.CANDIDATE, 0, 1)
    assert len({alias_of(point, role, sample, 1) for role in Role for sample in range(4)}) == 4 * len(Role)


async def test_a_skilled_policy_shows_in_money_and_in_score() -> None:
    chance = random.Random(3)
    policies = {
        Role.CANDIDATE: SkilledPolicy(0.9, "new", chance=chance),
        Role.INCUMBENT: SkilledPolicy(0.5, "old", invalid=0.4, chance=chance),
    }
    judge, plan = OutcomeJudge(), Plan(samples=4)
    outcome = await compare_policies(up_or_down_windows(24), policies, judge, plan, UpOrDownReplay())
    comparison = summarise(
        outcome, policies, plan, judge, candidate=make_checkpoint(2).as_release(), incumbent=None
    ).comparisons[0]
    assert comparison.score_difference.low is not None
    assert comparison.score_difference.low > 0.1
    assert comparison.pnl_difference is not None
    assert comparison.pnl_difference.mean > 0
    assert comparison.error_difference.high is not None
    assert comparison.error_difference.high < 0
