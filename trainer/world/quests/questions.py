"""Questions that a model is asked to find out whether it can read: errands whose right answer is known.

A question is the prompt of an hour of the first stage, from a world of its own that nobody plays, with trained or
unseen words about trained or unseen places and items. Safe and dangerous roads are equally many. The same arguments
give the same questions on every machine.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from data_bridge.models import ChatMessage
from data_bridge.window_ids import start_of, window_of
from trainer.world.actions import ActionError
from trainer.world.chance import bits
from trainer.world.grammar import FamilyName
from trainer.world.quests.carrying import GO, GUARD, QuestChoice, parse, why_not
from trainer.world.quests.errands import Quests, told
from trainer.world.quests.view import QuestView, messages_for, view_of

_FIRST_HOUR = start_of("2020-01-01T00:00")


@dataclass(frozen=True, slots=True)
class RoadQuestion:
    """What a model is shown, and what is told of the road."""

    messages: tuple[ChatMessage, ...]
    seen: QuestView
    direction: int
    """Safe (+1) or dangerous (-1)."""
    words: FamilyName
    names: FamilyName

    @property
    def headline(self) -> str:
        """What tells questions apart."""
        return self.seen.errands[0].news

    def taken(self, reply: str) -> int | None:
        """The answer in ``reply``: GO (+1) or GUARD (-1); None if it is not an action that can be taken."""
        choice = parse(reply)
        if isinstance(choice, ActionError) or why_not(choice, self.seen.offers, self.seen.errands, self.seen.coins):
            return None
        return choice.direction

    def answer(self, direction: int) -> str:
        """The reply that takes ``direction``."""
        return str(QuestChoice(GO if direction > 0 else GUARD, self.seen.errands[0].name))

    def read(self) -> int:
        """What a reader who knows all words makes of it."""
        return told(self.seen.errands[0])


def questions(number: int, words: FamilyName, names: FamilyName, seed: int = 0) -> tuple[RoadQuestion, ...]:
    """``number`` questions with as many different sentences; exactly balanced if it is even."""
    world = Quests(bits("questions", seed))
    found: dict[str, RoadQuestion] = {}
    kinds = Counter[int]()
    for hours in count():
        if len(found) == number:
            break
        hour = world.hour(window_of(_FIRST_HOUR + timedelta(hours=hours)), words, names)
        seen = view_of(hour, 0, hour.start, hour.supplies)
        [errand] = seen.errands
        direction = hour.road(errand.place)
        if direction == 0 or errand.news in found or kinds[direction] >= -(-number // 2):
            continue
        kinds[direction] += 1
        found[errand.news] = RoadQuestion(tuple(messages_for(seen, world.stage)), seen, direction, words, names)
    return tuple(found.values())
