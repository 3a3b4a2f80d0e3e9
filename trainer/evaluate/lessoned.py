"""Contestants with lessons: the candidate as its policy shows them, and the same model with lessons by chance.

A lesson is looked up as of the decision, so that none from later is shown; and none that rests on a window of this
evaluation, whenever it was known: these windows decide.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from data_bridge.database import Database
from data_bridge.lesson_client import context_of
from data_bridge.lesson_prompts import LessonsPolicy, policy_named, with_lessons
from data_bridge.models import ChatMessage
from trainer.evaluate.comparison import Contestant
from trainer.evaluate.decision_points import DecisionPoint
from trainer.evidence import Role
from trainer.ledger.lesson_search import any_lessons, from_windows
from trainer.lesson import Lesson, LessonKind, Recall, Scope
from trainer.types import ChatModel, Completion, Release


class LessonChoice(Protocol):
    """Which lessons a decision is shown."""

    async def choose(self, point: DecisionPoint) -> Sequence[Lesson]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """Those that fit the decision."""

    recall: Recall
    database: Database
    game: str
    policy: LessonsPolicy
    without: Collection[str]
    """The evaluation's own windows."""

    async def choose(self, point: DecisionPoint) -> list[Lesson]:
        # More than are shown, since those of the evaluation's windows are left out afterwards.
        found = await self.recall.retrieve(
            context_of(point.messages),
            scope_of(point, self.game),
            as_of=point.at,
            k=_SPARE * self.policy.number,
            kinds=kinds_of(self.policy),
        )
        names = [one.lesson.lesson_id for one in found]
        barred = await from_windows(self.database.pool, names, self.without) if names else set[str]()
        return [one.lesson for one in found if one.lesson.lesson_id not in barred][: self.policy.number]


_SPARE = 5


@dataclass(frozen=True, slots=True)
class ByChance:
    """As many by chance, of those that might have been shown; the same at the same point."""

    database: Database
    game: str
    policy: LessonsPolicy
    without: Collection[str]
    seed: int
    admitted: Collection[str] = ()

    async def choose(self, point: DecisionPoint) -> list[Lesson]:
        return await any_lessons(
            self.database.pool,
            scope_of(point, self.game),
            point.at,
            kinds_of(self.policy),
            number=self.policy.number,
            seed=f"{self.seed}/{point.key}",
            without=self.without,
            admitted=self.admitted,
        )


@dataclass(frozen=True, slots=True)
class LessonedPolicy:
    """A chat model that gets the logged messages with lessons."""

    model: ChatModel
    choice: LessonChoice
    wording: str
    name: str
    shown: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The texts that were shown, by the point's key."""

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        lessons = await self.choice.choose(point)
        self.shown[point.key] = tuple(one.shown for one in lessons)
        return await self.model.chat(
            self.messages_at(point), n=samples, temperature=temperature, max_tokens=point.max_tokens, seed=seed
        )

    def messages_at(self, point: DecisionPoint) -> list[ChatMessage]:
        """What the model was sent at a point that it has answered."""
        return with_lessons(point.messages, self.shown.get(point.key, ()), self.wording)


def scope_of(point: DecisionPoint, game: str) -> Scope:
    return Scope(game, point.role, point.trajectory.agent_id)


def kinds_of(policy: LessonsPolicy) -> tuple[LessonKind, ...]:
    return tuple(LessonKind(kind) for kind in policy.kinds)


@dataclass(frozen=True, slots=True)
class LessonSide:
    """What contestants with lessons need."""

    recall: Recall
    game: str
    admission: AdmissionSide | None = None
    """If the candidate differs by lessons from outside that ask to be shown."""


@dataclass(frozen=True, slots=True)
class AdmissionSide:
    """Lessons from outside that the candidate is shown among the others, and the incumbent is not."""

    recall: Recall
    lesson_ids: Collection[str]


def lessoned(
    models: Mapping[Role, ChatModel],
    plain: Mapping[Role, Contestant],
    candidate: Release,
    incumbent: Release | None,
    side: LessonSide,
    database: Database,
    windows: Collection[str],
    seed: int,
) -> dict[Role, Contestant]:
    """The contestants that have lessons, instead of the ``plain`` ones, and the controls beside the candidate's."""
    found: dict[Role, Contestant] = {}
    sides = {Role.CANDIDATE: candidate, Role.INCUMBENT: incumbent}
    for role, release in sides.items():
        policy = policy_named(release.lessons_policy) if release is not None else None
        if policy is not None and release is not None:
            asking = side.admission if role is Role.CANDIDATE else None
            recall = side.recall if asking is None else asking.recall
            choice = Found(recall, database, side.game, policy, windows)
            found[role] = LessonedPolicy(models[role], choice, policy.wording, release.name)
    policy = policy_named(candidate.lessons_policy)
    if policy is not None:
        model = models[Role.CANDIDATE]
        admitted = side.admission.lesson_ids if side.admission is not None else ()
        chance = ByChance(database, side.game, policy, windows, seed, admitted)
        found[Role.RANDOM_LESSONS] = LessonedPolicy(
            model, chance, policy.wording, f"{candidate.checkpoint.name} with random lessons"
        )
        if incumbent is None or incumbent.checkpoint != candidate.checkpoint or incumbent.lessons_policy:
            found[Role.NO_LESSONS] = plain[Role.CANDIDATE]
    return found
