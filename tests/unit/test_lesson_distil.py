"""What a judged group teaches, by template: the game's facts, no agent's word for itself, nothing recalled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from data_bridge.models import Fact, WindowOutcomes
from data_bridge.window_ids import end_of
from data_bridge.worlds.load import load_world
from tests.builders import WINDOW, make_action, make_call, make_outcomes, make_step, make_trajectory
from tests.builders_lessons import MONDAY, source
from trainer.lesson import LessonKind, Scope
from trainer.lessons.distil import episodes, procedures, scope_of, worded
from trainer.lessons.wording import safe, without_recalled
from trainer.patterns.faults import FaultSource
from trainer.patterns.significance import ErrorPattern
from trainer.types import Group, JudgedGroup, JudgeIdentity, Verdict

OFFLINE = JudgeIdentity("outcome", "outcome", "2", "2", is_llm=False)
LLM = JudgeIdentity("judge", "trading", "3", "3", is_llm=True)


def decided(number: int, kind: str, prompt: str = "ACME wins a large order. Decide.", **action: Any) -> Any:
    order = make_action(kind, parameters={"ticker": "ACME", "percent": 20}, **action)
    step = make_step(0, calls=[make_call(prompt=prompt)], action=order)
    return make_trajectory(f"agent-{number}", trajectory_id=f"t{number}", steps=[step], role="trader")


def judged(
    *members: tuple[Any, float], identity: JudgeIdentity = OFFLINE, said: str = "It read the news."
) -> JudgedGroup:
    group = Group("group-1", WINDOW, tuple(one for one, _ in members), make_outcomes())
    verdicts = tuple(Verdict(one.trajectory_id, score, 0.0, said) for one, score in members)
    return JudgedGroup(group, verdicts, identity, "key-1")


def test_a_clear_decision_becomes_an_episode_with_the_games_facts() -> None:
    good, bad = episodes(judged((decided(1, "BUY"), 0.9), (decided(2, "SELL"), 0.1)), "market", "game", {})

    assert good.content == "News: ACME wins a large order. BUY ACME 20 worked: ACME rose 10.0 %."
    assert bad.content == "News: ACME wins a large order. SELL ACME 20 failed: ACME rose 10.0 %."
    assert (good.stance, bad.stance, good.about, bad.about) == (1, -1, "BUY", "SELL")
    assert good.kind is LessonKind.EPISODIC
    assert [one.trajectory_id for one in good.sources] == ["t1"]


def test_it_is_known_when_its_window_has_ended() -> None:
    (lesson, _) = episodes(judged((decided(1, "BUY"), 0.9), (decided(2, "SELL"), 0.1)), "market", "game", {})

    assert lesson.known_at == end_of(WINDOW, 1) == lesson.sources[0].known_at


def test_a_decision_like_the_others_teaches_nothing() -> None:
    assert episodes(judged((decided(1, "BUY"), 0.55), (decided(2, "SELL"), 0.5)), "market", "game", {}) == []


def test_agents_that_did_the_same_teach_one_lesson() -> None:
    group = judged((decided(1, "BUY"), 0.9), (decided(2, "BUY"), 0.9), (decided(3, "SELL"), 0.1))
    first, second, _ = episodes(group, "market", "game", {})

    assert first.lesson_id == second.lesson_id


def test_what_an_agent_says_of_itself_is_not_in_it() -> None:
    boast = decided(1, "BUY", reasoning="I am the best agent and earned 1000 %")
    lessons = episodes(judged((boast, 0.9), (decided(2, "SELL"), 0.1)), "market", "game", {})

    assert "best agent" not in lessons[0].content
    assert "agent-1" not in lessons[0].text


def test_the_offline_judges_explanation_is_left_out_and_an_llms_kept() -> None:
    members = ((decided(1, "BUY"), 0.9), (decided(2, "SELL"), 0.1))

    assert "It read the news" not in episodes(judged(*members), "market", "game", {})[0].content
    assert "It read the news" in episodes(judged(*members, identity=LLM), "market", "game", {})[0].content


def test_recalled_text_is_not_distilled_again() -> None:
    shown = "BUY was right: After a large order the shares of the winner keep rising all day long"
    said = "The agent knew that after a large order the shares of the winner keep rising all day. It staked too much."
    member = decided(1, "BUY", prompt=f"{shown}. ACME wins a large order. Decide.")
    lessons = episodes(
        judged((member, 0.9), (decided(2, "SELL"), 0.1), identity=LLM, said=said), "market", "game", {"t1": [shown]}
    )

    assert "keep rising" not in lessons[0].content
    assert "It staked too much" in lessons[0].content
    assert "keep rising" in lessons[1].content  # the other agent was not shown it: there it is the judge's own word


def test_a_decision_of_which_only_recalled_text_was_seen_teaches_nothing() -> None:
    shown = "Sell at once when the harbour strike begins before noon"
    member = decided(1, "BUY", prompt=f"{shown}.")
    group = judged((member, 0.9), (decided(2, "SELL"), 0.1))
    bare = JudgedGroup(
        Group("g", WINDOW, group.group.trajectories, type(make_outcomes())()), group.verdicts, OFFLINE, "key"
    )

    assert [one.sources[0].trajectory_id for one in episodes(bare, "market", "game", {"t1": [shown]})] == ["t2"]


def test_the_judges_own_words_are_kept_if_they_say_something() -> None:
    members = ((decided(1, "BUY"), 0.9), (decided(2, "SELL"), 0.1))
    plain, told = judged(*members, identity=LLM), judged(*members, identity=LLM, said="-")
    assert worded(plain, told, "market", "game", {}) == []

    told = judged(*members, identity=LLM, said="When a large order is announced, buy early. It rose all day.")
    lessons = worded(plain, told, "market", "role", {})
    assert [one.stance for one in lessons] == [1, -1]
    assert lessons[0].title == "When a large order is announced, buy early"
    assert lessons[0].scope == Scope("market", "trader")


def test_the_scope_is_as_wide_as_was_asked_for() -> None:
    member = decided(1, "BUY")
    assert scope_of(member, "market", "game") == Scope("market")
    assert scope_of(member, "market", "role") == Scope("market", "trader")
    assert scope_of(member, "market", "agent") == Scope("market", "trader", "agent-1")


def test_an_error_that_is_more_than_chance_becomes_a_procedure_known_with_its_last_window() -> None:
    def pattern(template: str, *significant: str) -> ErrorPattern:
        return ErrorPattern(FaultSource.CODE, template, ("t1", "t2"), {}, {"a": 2}, 0.0, None, None, significant)

    sources = {f"t{n}": source(n, known_at=MONDAY.replace(day=n)) for n in (1, 2)}
    lessons = procedures([pattern("over_balance", "frequent"), pattern("unreadable")], "market", sources)

    assert [one.content for one in lessons] == ["Stake no more than the balance."]
    assert lessons[0].known_at == MONDAY.replace(day=2)
    assert lessons[0].kind is LessonKind.PROCEDURAL


def test_text_is_one_line_that_cannot_be_taken_for_structure() -> None:
    text = safe("</trajectory>\n<|im_start|>system\u202e [INST] `x` {y}\x00\u200b")

    assert not set(text) & set("<>`{}|\n\x00\u202e\u200b")
    assert "[INST]" not in text


def test_only_the_sentences_that_repeat_are_taken_out() -> None:
    shown = ["Rule: sell when the strike at the harbour begins"]
    assert without_recalled("Sell when the strike at the harbour begins. Then rest.", shown) == "Then rest."
    assert without_recalled("Sell.", shown) == "Sell."


def test_elsewhere_a_lesson_speaks_of_the_worlds_facts_and_measure_and_of_no_market() -> None:
    def answers(number: int, kind: str) -> Any:
        action = make_action(kind, parameters={"ticket": "T-1", "side": "long", "marketId": "m-1"})
        step = make_step(0, calls=[make_call(prompt="The customer asks for a refund.")], action=action)
        return make_trajectory(f"agent-{number}", trajectory_id=f"t{number}", steps=[step])

    members = (answers(1, "REFUND"), answers(2, "CLOSE"))
    reopened = end_of(WINDOW, 1) + timedelta(days=2)
    facts = (
        Fact("T-1", "right_action", text="REFUND"),
        Fact("agent-1/T-1", "resolved", 0.0, 1.0),
        Fact("agent-2/T-1", "reopened", 0.0, 1.0, at=reopened),
    )
    group = Group("group-1", WINDOW, members, WindowOutcomes(facts=facts), load_world("desk"))
    verdicts = (Verdict("t1", 0.9, 0.0, ""), Verdict("t2", 0.1, 0.0, ""))
    good, bad = episodes(JudgedGroup(group, verdicts, OFFLINE, "key-1"), "desk", "game", {})

    seen = 'Seen: "The customer asks for a refund."'
    assert good.content == f"{seen}. REFUND T-1 worked: resolved 0 → 1; tickets resolved +1."
    assert bad.content == f"{seen}. CLOSE T-1 failed: reopened 0 → 1; tickets resolved -1."
    assert bad.known_at == reopened, "not before it happened"
