"""Lessons for the agents of a simulated world: looked up at every decision, put into the agent's own prompt, logged.

The time of a decision is the world's own clock. Nothing of the hour itself is known then, and nothing of later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data_bridge.database import Database
from data_bridge.lesson_client import context_of
from data_bridge.lesson_prompts import LessonsPolicy, with_lessons
from data_bridge.models import ChatMessage
from trainer.ledger.injections import Injection, record_injections
from trainer.lesson import Lesson, LessonKind, Recall, Scope
from trainer.world.agents import EXPLORER, Agent
from trainer.world.market import moment
from trainer.world.player import PlayedHour
from trainer.world.record import trajectory_id_of


@dataclass(frozen=True, slots=True)
class AgentLessons:
    """What the agents of a world look up, and by which policy."""

    recall: Recall
    game: str
    policy: LessonsPolicy

    async def put(
        self, messages: Sequence[ChatMessage], seen: Any, agent: Agent
    ) -> tuple[list[ChatMessage], tuple[Lesson, ...]]:
        """The agent's prompt with its lessons, and which they are."""
        found = await self.recall.retrieve(
            context_of(messages),
            Scope(self.game, agent.role, agent.agent_id),
            as_of=moment(seen.window_id, seen.minute),
            k=self.policy.number,
            kinds=tuple(LessonKind(kind) for kind in self.policy.kinds),
        )
        lessons = tuple(one.lesson for one in found)
        return with_lessons(messages, [one.shown for one in lessons], self.policy.wording), lessons

    async def log(self, database: Database, hours: Sequence[PlayedHour], seed: int) -> None:
        """Store what was shown. An answer that exploration chose had no use for it."""
        shown = [
            Injection(
                decision_id=f"{(trajectory := trajectory_id_of(played.hour, life.agent, seed))}#{number}",
                lesson_id=lesson.lesson_id,
                place=place,
                game=self.game,
                agent_id=life.agent.agent_id,
                window_id=played.hour.window_id,
                shown_at=moment(played.hour.window_id, step.seen.minute),
                trajectory_id=trajectory,
                policy=self.policy.name,
            )
            for played in hours
            for life in played.agents
            for number, step in enumerate(life.steps)
            if step.answer.model != EXPLORER
            for place, lesson in enumerate(step.lessons)
        ]
        await record_injections(database.pool, shown)
