"""Merges what says the same, counts what speaks against it, and forgets what is worth least. Explains each deed.

Lessons of one scope about the same decision are near duplicates by a hybrid measure: near in meaning, and most words in
common once names and numbers are masked; or one contained in the other, as when something recalled was written down
again. Each lesson joins the nearest leader that says the same, or becomes a leader: leaders differ from each other, so
that a second consolidation finds nothing to merge. Two episodes that agree make a rule; those that differ in what came
of it count against it. What came from outside never adds to what verdicts taught.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from trainer.config.lessons import KeptLessons
from trainer.ledger.injections import count_usefulness
from trainer.ledger.lesson_upkeep import (
    HeldLesson,
    Merge,
    Retirement,
    consolidating,
    games_with_lessons,
    held_lessons,
    make_rules,
    mark_compared,
    merge,
    purge,
    retire_all,
    set_counts,
)
from trainer.lesson import Lesson, LessonKind, NewLesson, Trust
from trainer.lessons.retrieval import Lessons
from trainer.lessons.wording import words_of

if TYPE_CHECKING:
    from trainer.lesson import Vectors

_NEAR, _NEARER, _ALIKE = 0.6, 0.75, 0.93
"""Cosine from which common words decide, from which one may be contained in the other, and which is enough alone."""
_COMMON, _CONTAINED, _ENOUGH_WORDS = 0.75, 0.8, 4
_COMPARED = 500
"""Leaders, the nearest first, whose words are compared at most."""
_MASKED = re.compile(r"\$\w+|\b[A-Z]{2,6}\b|[-+]?\d[\d.,:%]*")
_OUTCOME = frozenset({"worked", "failed", "right", "wrong", "was", "rose", "fell", "did", "not", "move"})
"""Words that tell what came of a decision: two episodes may differ in them and still be about the same."""
_FUNCTION = frozenset(
    {
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "i", "if", "in", "is", "it", "its", "me"),
        *("my", "of", "on", "or", "that", "the", "this", "to", "when", "whenever", "with"),
    }
)
"""Words that every text has."""
_RECALL = frozenset({"again", "lesson", "memory", "noted", "notes", "recall", "remember", "remembered", "say", "says"})
"""Words around something recalled that was written down again."""
_MOST_TOLD = 200
_PRIOR_USES = 10
_LIFT_WEIGHT = 3.0


@dataclass(slots=True)
class Consolidation:
    """What one consolidation did."""

    compared: int = 0
    merged: int = 0
    rules: int = 0
    contradicted: int = 0
    retired: int = 0
    purged: int = 0
    deeds: list[str] = field(default_factory=list)
    """A sentence for each of the first deeds."""

    @property
    def changed(self) -> int:
        return self.merged + self.rules + self.contradicted + self.retired + self.purged

    def tell(self, sentence: str) -> None:
        if len(self.deeds) < _MOST_TOLD:
            self.deeds.append(sentence)


async def consolidate(
    lessons: Lessons, kept: KeptLessons, game: str | None = None, *, whole: bool = False
) -> Consolidation:
    """Consolidate one game, or all. ``whole``: also compare what was compared before."""
    done = Consolidation()
    await lessons.embed_waiting(game, again=True)
    await count_usefulness(lessons.database.pool)
    for name in [game] if game is not None else await games_with_lessons(lessons.database.pool):
        async with consolidating(lessons.database, name) as connection:
            held = await held_lessons(connection, lessons.kind, name, lessons.embedder.name)
            for scope in _scopes(held):
                await _merge_scope(connection, lessons, scope, done, whole=whole)
            left = [one.lesson for one in await held_lessons(connection, lessons.kind, name, lessons.embedder.name)]
            retired = _least_valuable(left, kept)
            await retire_all(connection, retired)
            done.retired += len(retired)
            for one in retired:
                done.tell(f"retired {one.lesson_id}: {one.reason}")
            done.purged += await purge(connection, name, kept.keep_retired)
    return done


def _scopes(held: Sequence[HeldLesson]) -> list[list[HeldLesson]]:
    """Lessons that may be merged with each other: of one scope, from inside or from outside, about one decision."""
    found: dict[tuple[object, ...], list[HeldLesson]] = {}
    for one in held:
        lesson = one.lesson
        # A procedure stays one; of the rest, episodes become rules. A kind that was chosen outside is kept.
        sort = lesson.kind if lesson.trust is Trust.API or lesson.kind is LessonKind.PROCEDURAL else "episode or rule"
        # What waits for the gate must not take the place of what has passed it.
        trust = (lesson.trust is Trust.API, lesson.gated_at is not None)
        found.setdefault((lesson.scope, trust, sort, lesson.about), []).append(one)
    return list(found.values())


@dataclass(slots=True)
class _Cluster:
    leader: HeldLesson
    members: list[tuple[HeldLesson, str]] = field(default_factory=list)
    """Others that say the same, and why they are taken to."""


def clusters_of(scope: Sequence[HeldLesson], *, whole: bool) -> list[_Cluster]:
    """Leaders with those that say the same. What was compared before is a leader already, unless ``whole``."""
    order = sorted(
        scope,
        key=lambda one: (
            one.is_new and not whole,
            one.lesson.kind is not LessonKind.SEMANTIC,
            one.lesson.known_at,
            one.lesson.lesson_id,
        ),
    )
    clusters: list[_Cluster] = []
    if not order:
        return clusters
    vectors = np.zeros((len(order), len(order[0].vector)), np.float32)
    words: list[frozenset[str]] = []
    for one in order:
        own = masked_words(one.lesson)
        found = None
        if clusters and (one.is_new or whole):
            found = _same(own, one.vector, words, vectors[: len(clusters)])
        if found is None:
            vectors[len(clusters)] = one.vector
            words.append(own)
            clusters.append(_Cluster(one))
        else:
            place, why = found
            clusters[place].members.append((one, why))
    return clusters


def _same(
    own: frozenset[str], vector: Vectors, words: Sequence[frozenset[str]], leaders: Vectors
) -> tuple[int, str] | None:
    cosines = leaders @ vector
    for place in np.argsort(-cosines, kind="stable")[:_COMPARED]:
        cosine = float(cosines[place])
        if cosine < _NEAR:
            return None
        other = words[place]
        both, fewest = len(own & other), min(len(own), len(other))
        common = both / max(1, len(own | other))
        if cosine >= _ALIKE or common >= _COMMON:
            return int(place), f"says the same (cosine {cosine:.2f}, {common:.0%} of the words)"
        if cosine >= _NEARER and fewest >= _ENOUGH_WORDS and both >= _CONTAINED * fewest:
            return int(place), f"repeats it ({both / fewest:.0%} of the words of the shorter)"
    return None


def masked_words(lesson: Lesson) -> frozenset[str]:
    """The words of a lesson without names of markets, numbers, what came of it, and those that every text has.

    Of what came from outside nobody knows what the numbers mean: there they count.
    """
    text = lesson.content if lesson.trust is Trust.API else _MASKED.sub(" ", lesson.content)
    return words_of(text) - _OUTCOME - _FUNCTION - _RECALL


async def _merge_scope(
    connection: object, lessons: Lessons, scope: Sequence[HeldLesson], done: Consolidation, *, whole: bool
) -> None:
    new = [one for one in scope if one.is_new or whole]
    if not new:
        return
    done.compared += len(new)
    for cluster in clusters_of(scope, whole=whole):
        if cluster.members:
            await _merge_cluster(connection, lessons, cluster, done)
    await mark_compared(connection, [one.lesson.lesson_id for one in scope])


async def _merge_cluster(connection: object, lessons: Lessons, cluster: _Cluster, done: Consolidation) -> None:
    """All of a cluster into its leader, or into the rule that it becomes."""
    everyone = [cluster.leader, *(one for one, _ in cluster.members)]
    reasons = {one.lesson.lesson_id: why for one, why in cluster.members}
    stance = _majority(everyone)
    first = next((one for one in everyone if one.lesson.stance in (stance, 0)), cluster.leader)
    target = _rule_of(everyone, first, stance)
    into = target.lesson_id if target is not None else first.lesson.lesson_id
    if target is not None and all(one.lesson.lesson_id != into for one in everyone):
        await make_rules(connection, lessons.kind, [target], first.vector[None, :], lessons.embedder.name)
        await mark_compared(connection, [into])
        done.rules += 1
    agree = sum(one.lesson.support for one in everyone if _agrees(one.lesson, stance))
    agree += sum(one.lesson.contradictions for one in everyone if not _agrees(one.lesson, stance))
    against = sum(one.lesson.support for one in everyone if not _agrees(one.lesson, stance))
    against += sum(one.lesson.contradictions for one in everyone if _agrees(one.lesson, stance))
    merges = [
        Merge(
            one.lesson.lesson_id,
            into,
            _agrees(one.lesson, stance),
            f"merged into {into}: {reasons.get(one.lesson.lesson_id, 'became this rule')}"
            if _agrees(one.lesson, stance)
            else f"counted against {into}: the same decision had the opposite result",
        )
        for one in everyone
        if one.lesson.lesson_id != into
    ]
    await merge(connection, merges)
    await set_counts(connection, [(into, max(1, agree), against)])
    done.merged += len(merges)
    done.contradicted += sum(not one.agrees for one in merges)
    done.tell(f"merged {len(merges)} into {into} ({agree} for it, {against} against): {first.lesson.title}")


def _majority(members: Sequence[HeldLesson]) -> int:
    """What came of it in most episodes; of the leader if that is even."""
    weight = sum(one.lesson.stance * (one.lesson.support - one.lesson.contradictions) for one in members)
    return members[0].lesson.stance if weight == 0 else (1 if weight > 0 else -1)


def _agrees(lesson: Lesson, stance: int) -> bool:
    return lesson.stance in (stance, 0) or stance == 0


def _rule_of(members: Sequence[HeldLesson], first: HeldLesson, stance: int) -> NewLesson | None:
    """The rule that these episodes make; None if they stay what they are (procedures, and texts from outside).

    In the words of the first episode that agrees, and known as soon as a second one agreed.
    """
    lesson = first.lesson
    if lesson.trust is Trust.API or lesson.kind is not LessonKind.EPISODIC:
        return None
    moments = sorted(one.lesson.known_at for one in members if _agrees(one.lesson, stance))
    return NewLesson(
        kind=LessonKind.SEMANTIC,
        scope=lesson.scope,
        title=lesson.title,
        content=lesson.content,
        known_at=_known_at(moments),
        trust=lesson.trust,
        importance=max(one.lesson.importance for one in members),
        about=lesson.about,
        stance=lesson.stance,
    )


def _known_at(moments: Sequence[datetime]) -> datetime:
    return moments[1] if len(moments) > 1 else moments[0]


def value(lesson: Lesson, newest: datetime, half_life: timedelta) -> float:
    """Importance times recency times measured usefulness, less what speaks against it.

    Recency is counted in the game's clock from the newest lesson, so that it does not change while nothing happens.
    """
    last = max(lesson.known_at, lesson.last_used_at or lesson.known_at)
    recency = 0.5 ** (max(timedelta(0), newest - last) / half_life)
    lift = (lesson.usefulness or 0.0) * lesson.scored_uses / (lesson.scored_uses + _PRIOR_USES)
    agreement = lesson.support / max(1, lesson.support + lesson.contradictions)
    return float(lesson.importance * recency * exp(_LIFT_WEIGHT * lift) * agreement)


def _least_valuable(lessons: Sequence[Lesson], kept: KeptLessons) -> list[Retirement]:
    """Rules that more speaks against than for, and what is beyond the cap of its scope."""
    refuted = [one for one in lessons if one.contradictions > one.support]
    retired = [
        Retirement(one.lesson_id, f"{one.contradictions} episodes speak against it and {one.support} for it")
        for one in refuted
    ]
    out = {one.lesson_id for one in refuted}
    scopes: dict[object, list[Lesson]] = {}
    for one in lessons:
        if one.lesson_id not in out:
            scopes.setdefault(one.scope, []).append(one)
    for own in scopes.values():
        newest = max(one.known_at for one in own)
        ranked = sorted(own, key=lambda one: (-value(one, newest, kept.lesson_half_life), one.lesson_id))
        why = f"not among the {kept.max_lessons} most valuable of its scope"
        retired += [Retirement(one.lesson_id, why) for one in ranked[kept.max_lessons :]]
    return retired
