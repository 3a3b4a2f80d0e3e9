"""The reading test's arithmetic, and the policies that are always valid."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from data_bridge.models import Action, Step
from data_bridge.quality import CheckedWindow
from tests.builders import make_call, make_step, make_trajectory, make_window
from tests.builders_evaluation import FixedPolicy, up_or_down_windows
from tests.unit.test_blind_trial import ReadingJudge
from trainer.evaluate.blind_trial import OthersPolicy, compare_policies
from trainer.evaluate.comparison import Compared, ScoredReply, TrialPlan
from trainer.evaluate.decision_points import DecisionPoint
from trainer.evaluate.rare_states import rarest_quarter, rarest_states
from trainer.evaluate.reading import Mark, _result, as_read, at_random, figures_of, marked
from trainer.evidence import UNSEEN_WORDS, Reader, Role
from trainer.statistics.shares import paired_gain, share_interval
from trainer.types import Completion
from trainer.world.questions import questions

DONE = Action(action_type="BUY", success=True)


def test_the_headline_takes_the_stronger_base_and_says_which() -> None:
    right = {Reader.CANDIDATE: 9, Reader.CANDIDATE_GREEDY: 10, Reader.BASE: 3, Reader.BASE_GREEDY: 7}

    def test_of(hits: dict[Reader, int]) -> tuple[Reader, float, str]:
        marks = {
            (reader, UNSEEN_WORDS): [Mark(1, 1, int(number < share)) for number in range(10)]
            for reader, share in hits.items()
        }
        found = _result(marks, 1.0)
        return found.stronger_base, round(found.gain.mean, 6), found.headline

    stronger, gain, told = test_of(right)
    assert (stronger, gain) == (Reader.BASE_GREEDY, 0.2)
    assert "the stronger base (greedy) on 10 questions with unseen words: +0.20 [" in told
    assert "direction of the valid replies 0.90 [" in told
    assert "the base's 0.70 [" in told
    stronger, gain, told = test_of(right | {Reader.BASE: 8})
    assert (stronger, gain) == (Reader.BASE, 0.1)
    assert "the stronger base (at temperature 1)" in told


def test_form_and_decision_are_told_apart() -> None:
    figures = figures_of(Reader.BASE, UNSEEN_WORDS, [Mark(2, 1, 1), Mark(2, 2, 1), Mark(2, 0, 0), Mark(2, 1, 1)])
    assert figures.valid is not None
    assert figures.right_of_valid is not None
    assert figures.both is not None
    assert (figures.valid.mean, figures.right_of_valid.mean, figures.both.mean) == (0.5, 0.75, 0.375)
    assert (figures.valid.windows, figures.right_of_valid.windows) == (4, 3), "questions, not replies"
    assert figures_of(Reader.BASE, UNSEEN_WORDS, [Mark(2, 0, 0)]).right_of_valid is None


def test_intervals_of_shares_are_never_surer_than_their_questions() -> None:
    for hits, of in (([1] * 40, [1] * 40), ([2] * 40, [2] * 40)):
        sure = share_interval(hits, of)
        assert sure is not None
        assert sure.low is not None
        assert 0.9 < sure.low < 0.92, "forty questions, however many replies"
    gain = paired_gain([1, 1, 0.5, 1] * 20, [0, 1, 0.5, 0.5] * 20)
    assert gain.low is not None
    assert gain.high is not None
    assert 0.25 < gain.low < gain.mean == 0.375 < gain.high < 0.5


@pytest.mark.parametrize("words", ["trained", "unseen"])
def test_random_is_always_valid_and_half_right_and_the_script_always_right(words: str) -> None:
    asked = questions(80, "unseen" if words == "unseen" else "trained", "unseen")
    coin = figures_of(Reader.RANDOM, words, marked(asked, at_random(asked)))
    read = figures_of(Reader.SCRIPT, words, marked(asked, as_read(asked)))
    assert coin.valid is not None
    assert coin.both is not None
    assert read.both is not None
    assert coin.valid.mean == read.both.mean == 1.0
    assert 0.35 < coin.both.mean < 0.65


# A random reply of a real game's log


def _logged(*replies: tuple[str, str, Action | None]) -> CheckedWindow:
    trajectories = [
        make_trajectory(agent, trajectory_id=f"{agent}/{number}", steps=[_step(text, action)])
        for number, (agent, text, action) in enumerate(replies)
    ]
    window = make_window(trajectories=trajectories)
    return CheckedWindow(window, window.trajectories, ())


def _step(text: str, action: Action | None) -> Step:
    return msgspec.structs.replace(make_step(0, calls=[make_call(text)]), action=action)


async def test_the_random_reply_of_a_log_is_another_agents_valid_one_and_the_same_every_time() -> None:
    failed = Action(action_type="BUY", success=False, error="no money")
    window = _logged(("me", "MINE", DONE), ("a", "A", DONE), ("b", "B", DONE), ("c", "C", failed), ("d", " ", DONE))
    policy = OthersPolicy([window], ("action",))
    point = DecisionPoint(window.usable[0], 0, 0, window.window.outcomes)

    async def drawn(seed: int) -> list[str]:
        return [one.text for one in await policy.replies(point, samples=4, temperature=1.0, seed=seed)]

    assert {text for seed in range(20) for text in await drawn(seed)} == {"A", "B"}
    assert [await drawn(3)] * 2 == [await drawn(3), await drawn(3)]
    assert len(await drawn(3)) == 1, "one reply costs the judge one reply"
    alone = _logged(("me", "MINE", DONE), ("c", "C", failed))
    nowhere = DecisionPoint(alone.usable[0], 0, 0, alone.window.outcomes)
    assert not await OthersPolicy([alone], ("action",)).replies(nowhere, samples=4, temperature=1.0, seed=0)


async def test_single_replies_cost_the_judge_no_further_group() -> None:
    many = {role: FixedPolicy([role.value], role.value) for role in (Role.CANDIDATE, Role.INCUMBENT, Role.BASELINE)}

    class Once(FixedPolicy):
        async def replies(
            self, point: DecisionPoint, *, samples: int, temperature: float, seed: int
        ) -> list[Completion]:
            return [Completion(self.texts[0])]

    judge = ReadingJudge()
    policies = {**many, Role.GREEDY: Once(["g"], "greedy"), Role.RANDOM: Once(["r"], "random")}
    await compare_policies(up_or_down_windows(1, agents=1), policies, judge, TrialPlan(samples=4, max_group=8))
    assert [len(group.trajectories) for group in judge.groups] == [7, 7]


# The rarest states of a log


def _compared(windows: list[CheckedWindow], valid: bool) -> list[Compared]:
    reply = ScoredReply("x", 0.5, "", is_error=not valid)
    good = replace(reply, is_error=False)
    return [
        Compared(
            DecisionPoint(trajectory, 0, 0, window.window.outcomes),
            {Role.CANDIDATE: (reply,), Role.INCUMBENT: (good,)},
        )
        for window in windows
        for trajectory in window.usable
    ]


def test_rare_states_are_those_with_rare_words() -> None:
    trajectories = [
        make_trajectory(f"a{n}", steps=[make_step(0, calls=[make_call(prompt=text)])])
        for n, text in enumerate(["the price is 17"] * 7 + ["a volcano buried the harbour"])
    ]
    window = make_window(trajectories=trajectories)
    checked = CheckedWindow(window, window.trajectories, ())
    compared = _compared([checked], valid=True)
    rare = rarest_quarter([checked], compared, ("action",))
    assert len(rare) == 2
    assert rare[0].point.trajectory.agent_id == "a7"


@pytest.mark.parametrize(("windows", "valid", "candidate"), [(24, True, 1.0), (24, False, 0.0), (10, True, None)])
def test_validity_on_rare_states_needs_enough_of_them(windows: int, valid: bool, candidate: float | None) -> None:
    hours = up_or_down_windows(windows)
    found = rarest_states(hours, _compared(hours, valid), Role.INCUMBENT, ("action",))
    assert found.candidate == candidate
    assert (found.base is None) == bool(found.reason) == (candidate is None)
