"""The quest world: hours of errands, generated from a seed, the same on any machine.

At every place there is a board with errands: bring an item to another place, for a fee. The road to a place is safe,
quiet or dangerous for hours at a time, and what is told of it says which. ``luck`` is the probability that robbers come
or stay away whatever was told; the coin then decides.

    GO       alone: earns the fee if no robbers come, and costs as much if they do
    GUARD    with a hired guard, at twice the fee: a loss of the fee on a safe road, but robbers carry a bounty of
             twice the fee
    JOIN     a heavy load, which nobody carries alone: two can carry it, three drive off robbers as well
    WAIT     earns nothing

What can be done follows the state. Errands are those of the place where the agent is, and an errand that was carried
out ends at another place. Guards are hired by day and not on Sundays, by those who have the coins. With an urgent
errand on the board nobody waits. In the first stage there is one light errand at a time and a guard at any hour, so
that the only question is whether the road is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

from data_bridge.window_ids import start_of
from trainer.world.chance import pick, shuffled, unit
from trainer.world.grammar import FamilyName, SentenceReader, sentence
from trainer.world.market import decision_minutes
from trainer.world.quests.vocabulary import ITEMS, PLACES, WORDS
from trainer.world.regimes import SAME_HOURS, regime_of, turn_of

EDITION = "quests 1"
"""Of the world: its hours and its prompts. Stored with every window; a window of another edition is not replayed."""

FEES = range(20, 51)
_SUPPLIES = range(60, 151, 10)
_ONE_SUPPLIES = 100
_DAY = range(6, 22)
"""Hours at which guards can be hired."""
_SUNDAY = 6
_HEAVY, _URGENT = 0.25, 0.25

StageName = Literal["one", "several"]


@dataclass(frozen=True, slots=True)
class QuestStage:
    """The size of the world: worlds have stages from easy to hard."""

    name: StageName
    errands: int
    is_plain: bool
    """Light errands only, a guard at any hour, no waiting."""


STAGES: dict[StageName, QuestStage] = {
    "one": QuestStage("one", errands=1, is_plain=True),
    "several": QuestStage("several", errands=3, is_plain=False),
}


@dataclass(frozen=True, slots=True)
class Errand:
    """What the board says, and what is told of the road."""

    place: str
    item: str
    fee: int
    news: str
    is_heavy: bool = False
    is_urgent: bool = False

    @property
    def name(self) -> str:
        return f"{self.item} to {self.place}"

    @property
    def guard_price(self) -> int:
        return 2 * self.fee


@dataclass(frozen=True)
class QuestHour:
    """Everything that happens in a window, the future included. Agents only ever see a ``QuestView`` of it."""

    window_id: str
    world: Quests
    minutes: tuple[float, ...]
    """When the decisions are made."""
    words: FamilyName = "trained"
    names: FamilyName = "trained"

    @cached_property
    def number(self) -> int:
        return int(start_of(self.window_id).timestamp()) // 3600

    @property
    def stage(self) -> QuestStage:
        return STAGES[self.world.stage]

    @property
    def places(self) -> tuple[str, ...]:
        return PLACES[self.names]

    @property
    def start(self) -> str:
        """Where all agents are when the window begins."""
        return pick(self.places, self.world.seed, "start", self.number // SAME_HOURS)

    @property
    def supplies(self) -> int:
        """The coins that every agent sets out with."""
        if self.stage.is_plain:
            return _ONE_SUPPLIES
        return pick(_SUPPLIES, self.world.seed, "supplies", self.number)

    @property
    def has_guards(self) -> bool:
        start = start_of(self.window_id)
        return self.stage.is_plain or (start.hour in _DAY and start.weekday() != _SUNDAY)

    @property
    def time_of_day(self) -> str:
        start = start_of(self.window_id)
        return f"{start:%A} {'day' if start.hour in _DAY else 'night'}"

    def board(self, step: int, place: str) -> tuple[Errand, ...]:
        """The errands at ``place`` at decision ``step``."""
        seed, number, stage = self.world.seed, self.number, self.stage
        key = (seed, "board", number, step, place)
        others = [one for one in self.places if one != place]
        to = shuffled(others, seed, "to", number // SAME_HOURS, step, place)[: stage.errands]
        items = shuffled(ITEMS[self.names], *key, "items")
        return tuple(self._errand(where, items[slot], *key, slot) for slot, where in enumerate(to))

    def _errand(self, place: str, item: str, *key: object) -> Errand:
        is_heavy = not self.stage.is_plain and unit(*key, "heavy") < _HEAVY
        is_urgent = not self.stage.is_plain and unit(*key, "urgent") < _URGENT
        news = sentence(WORDS[self.words], self.road(place), {"place": place}, *key, "news")
        return Errand(place, item, pick(FEES, *key, "fee"), news, is_heavy, is_urgent)

    def road(self, place: str) -> int:
        """What is told of the road to ``place``: safe (+1), dangerous (-1) or nothing (0)."""
        return regime_of(self.world.seed, _road(place), self.number)

    def has_robbers(self, place: str) -> bool:
        """Whether robbers came on the road to ``place``."""
        return turn_of(self.world.seed, self.world.luck, _road(place), self.number) < 0


@dataclass(frozen=True, slots=True)
class Quests:
    """A world: its seed, its luck, its stage, and the number of decisions per hour."""

    seed: int
    luck: float = 0.2
    stage: StageName = "one"
    decisions: int = 1

    name: ClassVar[str] = "quests"

    def hour(self, window_id: str, words: FamilyName = "trained", names: FamilyName = "trained") -> QuestHour:
        """The hour of ``window_id``: a pure function of this world and the id.

        Agents play hours of trained words, places and items. The unseen ones are for questions only.
        """
        return QuestHour(window_id, self, decision_minutes(self.decisions), words, names)


_READING = SentenceReader.of(WORDS.values())


def told(errand: Errand) -> int:
    """What the news of an errand says to a reader who understands it: safe (+1), dangerous (-1) or nothing (0)."""
    return _READING.direction(errand.news, errand.place)


def _road(place: str) -> str:
    return f"road to {place}"
