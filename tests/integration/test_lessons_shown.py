"""What agents are shown was known when they decided, from no window that is to be ruled on; and it is logged."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.lesson_client import Decider, LessonsEndpoint
from data_bridge.lesson_prompts import LessonsPolicy, decided_at, lessons_in
from data_bridge.lookup import read_trajectories
from data_bridge.models import AgentTrajectory, ChatMessage
from data_bridge.window_ids import end_of, start_of, windows_from
from tests.builders_console import FULL, opened_console
from tests.builders_lessons import WordEmbedder, new_lesson
from trainer.ledger.lesson_search import any_lessons
from trainer.lesson import ALL_KINDS, FoundLesson, LessonKind, LessonSource, Recall, Scope
from trainer.lessons.retrieval import Lessons, open_lessons_of
from trainer.lessons.shown import note_shown
from trainer.promote.publish import finish_canary, publish, roll_back
from trainer.types import Checkpoint, Completion, Serving
from trainer.world.agents import ChatPolicy, Exploration, model_cast
from trainer.world.exchange import Exchange
from trainer.world.lessons import AgentLessons
from trainer.world.market import Market
from trainer.world.observation import messages_for, observe
from trainer.world.play import play_windows

MARKET = Market(7, decisions=2)
WINDOWS = windows_from("2026-03-02T00:00", 12)
GAME = Scope("market")
ALL = LessonsPolicy(10)


class Fixed:
    """A model that gives one answer, whatever it is told; it remembers what it was told."""

    name = "fixed"

    def __init__(self, reply: str | None = None) -> None:
        self.reply = reply
        self.seen: list[Sequence[ChatMessage]] = []

    async def chat(self, messages: Sequence[ChatMessage], **how: object) -> list[Completion]:
        self.seen.append(messages)
        return [Completion(self.reply or f"BUY {messages[-1].text().split()[0]} 20%", model=self.name)]

    async def close(self) -> None:
        return


class Leaking:
    """A deliberately leaking policy: looks up what will be known at the end of time."""

    def __init__(self, recall: Recall) -> None:
        self._recall = recall

    async def retrieve(
        self,
        context: str,
        scope: Scope,
        *,
        as_of: datetime,
        k: int = 3,
        kinds: Sequence[LessonKind] = ALL_KINDS,
    ) -> list[FoundLesson]:
        return await self._recall.retrieve(context, scope, as_of=datetime.max.replace(tzinfo=UTC), k=k, kinds=kinds)


async def planted(database: Database, windows: Sequence[str], delays: Sequence[timedelta] = ()) -> Lessons:
    """One lesson of each window, with a mark that occurs nowhere else; known when the window is over, or later."""
    lessons = await open_lessons_of(database, WordEmbedder())
    made = []
    for number, window in enumerate(windows):
        known_at = end_of(window, 1) + (delays[number] if delays else timedelta(0))
        sources = (LessonSource(f"t-{window}", "agent-1", window, known_at),)
        made.append(new_lesson(f"up down to News mark{number} of {window}", known_at=known_at, sources=sources))
    await lessons.store(made)
    return lessons


async def consult(database: Database, window_ids: Sequence[str]) -> None:
    """An evaluation that consulted these windows and has no ruling."""
    await database.pool.execute(
        "INSERT INTO hindsight.evaluations (evaluation_id, model, candidate_step, incumbent_step, judge, windows, gain,"
        " report) VALUES ('waiting', 'hindsight', 1, 0, 'outcome', 1, 0, '{}')"
    )
    await database.pool.execute(
        "INSERT INTO hindsight.consultations (evaluation_id, window_id) SELECT 'waiting', unnest($1::text[])",
        list(window_ids),
    )


async def prompts_at_random_times(recall: Recall, chance: random.Random, number: int) -> list[tuple[datetime, str]]:
    """Prompts of decisions at any time of the week, each with its time."""
    found = []
    cast = model_cast(3, 7, ChatPolicy(Fixed()))
    looked_up = AgentLessons(recall, "market", ALL)
    for _ in range(number):
        hour = MARKET.hour(chance.choice(WINDOWS))
        step = chance.randrange(len(hour.minutes))
        seen = observe(hour, step, Exchange(hour).quotes(step))
        minute = chance.uniform(0, 59.99)
        moved = type(seen)(seen.window_id, seen.step, minute, seen.quotes, seen.questions, seen.headlines, seen.offers)
        messages, _ = await looked_up.put(messages_for(seen, "one"), moved, chance.choice(cast))
        found.append((start_of(hour.window_id) + timedelta(minutes=minute), str(messages[0].content)))
    return found


def leaks(prompts: Sequence[tuple[datetime, str]], known: Sequence[datetime], barred: Sequence[int]) -> list[int]:
    """The marks that stand in a prompt from before they were known, or are of a window that is to be ruled on."""
    return [
        mark
        for at, prompt in prompts
        for mark, known_at in enumerate(known)
        if f"mark{mark} " in prompt and (known_at > at or mark in barred)
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_shown_before_it_was_known_or_from_an_evaluation_window(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    delays = [timedelta(minutes=chance.uniform(0, 300)) for _ in WINDOWS]
    lessons = await planted(database, WINDOWS, delays)
    barred = chance.sample(range(len(WINDOWS)), 3)
    await consult(database, [WINDOWS[number] for number in barred])
    known = [end_of(window, 1) + delay for window, delay in zip(WINDOWS, delays, strict=True)]

    prompts = await prompts_at_random_times(lessons, chance, 60)
    assert leaks(prompts, known, barred) == []
    shown = {mark for _, prompt in prompts for mark in range(len(WINDOWS)) if f"mark{mark} " in prompt}
    assert len(shown) >= 4, "what was known is shown"
    for at, _ in prompts[:20]:  # the control obeys the same clock
        drawn = await any_lessons(database.pool, GAME, at, ALL_KINDS, number=10, seed=str(at))
        assert all(one.known_at <= at for one in drawn)
        assert not [one for one in drawn for mark in barred if f"mark{mark} " in one.content]

    told = await prompts_at_random_times(Leaking(lessons), chance, 20)
    assert leaks(told, known, barred), "this test finds a policy that leaks"


async def trajectories_of(database: Database) -> list[AgentTrajectory]:
    names = [row[0] for row in await database.pool.fetch('SELECT "trajectoryId" FROM trajectories')]
    return [one async for one in read_trajectories(database, names, 2**24)]


async def play(database: Database, folder: Path, recall: Recall) -> list[AgentTrajectory]:
    """Four agents with lessons; the first decisions of later hours are asked in advance."""
    await play_windows(
        database,
        folder,
        MARKET,
        model_cast(4, 7, ChatPolicy(Fixed())),
        WINDOWS,
        exploration=Exploration(0.25, 0.25, how="answers"),
        lookahead=5,
        lessons=AgentLessons(recall, "market", ALL),
    )
    return await trajectories_of(database)


async def test_marks_of_a_window_appear_only_in_decisions_after_it_was_known(
    database: Database, tmp_path: Path
) -> None:
    lessons = await planted(database, WINDOWS)
    played = await play(database, tmp_path, lessons)
    assert len(played) == 4 * len(WINDOWS)

    first: dict[int, datetime] = {}
    logged = 0
    for one in played:
        for number, step in enumerate(one.steps):
            at, shown = decided_at(one, number), lessons_in(step.llm_calls[0].seen())
            logged += len(shown) if step.llm_calls[0].model != "explorer" else 0
            for mark, window in enumerate(WINDOWS):
                if any(f"mark{mark} " in text for text in shown):
                    assert at >= end_of(window, 1)
                    first[mark] = min(at, first.get(mark, at))
    assert sorted(first) == list(range(len(WINDOWS) - 1)), "every one is shown, but the last: nobody decides after it"
    rows = await database.pool.fetch("SELECT * FROM hindsight.injections")
    assert len(rows) == logged > 0
    assert {row["policy"] for row in rows} == {ALL.name}
    # Read again from the prompts, it is the same: nothing is counted twice.
    assert await note_shown(database.pool, "market", played) == []
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.injections") == logged
    assert await database.pool.fetchval("SELECT sum(uses) FROM hindsight.lessons") == logged


async def test_a_leak_in_the_log_is_found_and_does_not_count(database: Database, tmp_path: Path) -> None:
    lessons = await planted(database, WINDOWS)
    played = await play(database, tmp_path, Leaking(lessons))
    await database.pool.execute("DELETE FROM hindsight.injections")

    found = await note_shown(database.pool, "market", played)
    assert found
    assert all(leak.known_at > leak.shown_at for leak in found)
    early = await database.pool.fetchval(
        "SELECT count(*) FROM hindsight.injections i JOIN hindsight.lessons l USING (lesson_id)"
        " WHERE l.known_at > i.shown_at"
    )
    assert early == 0


async def test_an_agent_looks_lessons_up_over_http_and_decides_without_them_if_it_must(
    database: Database, tmp_path: Path
) -> None:
    lessons = await open_lessons_of(database, WordEmbedder())
    known_at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    await lessons.store([new_lesson("strikes mean sell", scope=Scope("game"), known_at=known_at)])
    async with opened_console(database, tmp_path) as console:
        async with LessonsEndpoint(console.url, FULL, policy=LessonsPolicy(), timeout=30.0) as endpoint:
            found = await endpoint.look_up("a strike begins", Decider("agent-1", known_at))
            assert [one.text for one in found] == ["A lesson: strikes mean sell"]
            early = Decider("agent-1", known_at - timedelta(seconds=1))
            assert await endpoint.look_up("a strike begins", early) == []
            with pytest.raises(ValueError, match="no time zone"):
                await endpoint.look_up("a strike", Decider("agent-1", known_at.replace(tzinfo=None)))
            assert (endpoint.asked, endpoint.missed) == (2, 0)
        async with LessonsEndpoint(console.url, "another-key", timeout=30.0) as stranger:
            assert await stranger.look_up("a strike begins", Decider("agent-1", known_at)) == []
            assert stranger.missed == 1
    async with LessonsEndpoint("http://127.0.0.1:9", timeout=5.0) as away:
        assert await away.look_up("a strike begins", Decider("agent-1", known_at)) == []
        assert away.missed == 1


async def test_an_agent_is_told_the_policy_of_the_release_that_it_was_given(database: Database, tmp_path: Path) -> None:
    lessons = await open_lessons_of(database, WordEmbedder())
    known_at = datetime(2026, 3, 2, 12, tzinfo=UTC)
    await lessons.store(
        [new_lesson(f"strikes mean sell {one}", scope=Scope("game"), known_at=known_at) for one in "ab"]
    )
    point = Checkpoint("hindsight", 0, "base", "cpu", "base")
    at = Serving("http://agents", point.name)
    await publish(database, tmp_path, point.as_release(), at, reason="first")
    await database.pool.execute(
        "INSERT INTO hindsight.promotions (model, step, kind, state, reason, base_model, backend, location, base_url,"
        " served_model, canary_share, lessons_policy) VALUES ('hindsight', 0, 'promotion', 'canary', 'on trial',"
        " 'base', 'cpu', 'base', '', '', 0.5, 'lessons-1-all-weighed')"
    )
    await database.pool.execute(
        "INSERT INTO hindsight.canary_agents SELECT max(promotion_id), 'canary' FROM hindsight.promotions"
    )
    async with (
        opened_console(database, tmp_path) as console,
        LessonsEndpoint(console.url, FULL, timeout=30.0, refresh=0.0) as endpoint,
    ):

        async def shown(agent: str) -> list[tuple[str, str]]:
            found = await endpoint.look_up("a strike begins", Decider(agent, known_at))
            return [(one.text, one.wording) for one in found]

        assert await shown("other") == []
        assert [wording for _, wording in await shown("canary")] == ["weighed"]
        await finish_canary(database, tmp_path, "hindsight", outcome="better")
        assert await shown("other") == await shown("canary") != []
        await roll_back(database, tmp_path, "hindsight", lambda _: at, step=None, reason="worse")
        assert await shown("canary") == []
        assert endpoint.missed == 0
