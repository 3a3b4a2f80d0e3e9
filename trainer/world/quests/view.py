"""What an agent can know of an hour of errands, and the chat messages that present it to the agent's model.

A view has the board of the place where the agent is, what is told of the roads, its coins, and what it could do now. It
has nothing that happens later, and nothing of the planted truth. All agents of a window begin at one place with the
same supplies, so at the first decision their views are the same and an engine reads the prompt once.

Nothing in the prompt states how news and answers belong together. Worked examples show it, with words, places and items
that occur nowhere else in the world, each answer as often as the other. The wording was chosen by measuring the
embedded 135M model: the errand in the words of the answer, which it then copies, and the two answers in turn. With both
examples of one answer first it prefers the other answer, whatever is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.models import ChatMessage
from data_bridge.window_ids import start_of
from trainer.world.quests.carrying import GO, GUARD, JOIN, WAIT, QuestChoice
from trainer.world.quests.errands import Errand, QuestHour, StageName


@dataclass(frozen=True, slots=True)
class QuestView:
    window_id: str
    step: int
    minute: float
    place: str
    coins: int
    time_of_day: str
    errands: tuple[Errand, ...]
    offers: tuple[QuestChoice, ...]

    def errand(self, choice: QuestChoice) -> Errand | None:
        return next((one for one in self.errands if one.name == choice.errand), None)


def view_of(hour: QuestHour, step: int, place: str, coins: int) -> QuestView:
    """What an agent at ``place`` with ``coins`` can know at decision ``step`` of ``hour``."""
    errands = hour.board(step, place)
    offers: list[QuestChoice] = []
    for errand in errands:
        offers.append(QuestChoice(JOIN if errand.is_heavy else GO, errand.name))
        if hour.has_guards and not errand.is_heavy and coins >= errand.guard_price:
            offers.append(QuestChoice(GUARD, errand.name))
    if not hour.stage.is_plain and not any(errand.is_urgent for errand in errands):
        offers.append(QuestChoice(WAIT))
    return QuestView(hour.window_id, step, hour.minutes[step], place, coins, hour.time_of_day, errands, tuple(offers))


_SYSTEM: dict[StageName, str] = {
    "one": "Run errands.",
    "several": "Run errands: GO alone, GUARD with a hired guard, JOIN to carry together, or WAIT.",
}


@dataclass(frozen=True, slots=True)
class WorkedErrand:
    """A choice that fits what is told."""

    errands: tuple[Errand, ...]
    choice: QuestChoice
    header: str = ""


_FORT = Errand("Fort", "coat", 35, "The path to Fort is very good")
_SCHOOL = Errand("School", "apple", 28, "Life is fine at School")
_FARM = Errand("Farm", "ring", 46, "The path to Farm is very bad")
_CAMP = Errand("Camp", "book", 31, "Criminals wait at Camp")
_HEAVY = Errand("Fort", "stone", 43, "The path to Fort is very good", is_heavy=True)
_TRAP = Errand("Camp", "stone", 39, "Criminals wait at Camp", is_heavy=True)

EXAMPLES: dict[StageName, tuple[WorkedErrand, ...]] = {
    "one": (
        WorkedErrand((_FORT,), QuestChoice(GO, _FORT.name)),
        WorkedErrand((_FARM,), QuestChoice(GUARD, _FARM.name)),
        WorkedErrand((_SCHOOL,), QuestChoice(GO, _SCHOOL.name)),
        WorkedErrand((_CAMP,), QuestChoice(GUARD, _CAMP.name)),
    ),
    "several": (
        WorkedErrand((_FORT,), QuestChoice(GO, _FORT.name), "Shop, Friday day, 110 coins"),
        WorkedErrand((_FARM,), QuestChoice(GUARD, _FARM.name), "Shop, Friday day, 140 coins"),
        WorkedErrand((_HEAVY,), QuestChoice(JOIN, _HEAVY.name), "Shop, Sunday day, 90 coins"),
        WorkedErrand((_TRAP,), QuestChoice(WAIT), "Shop, Monday night, 70 coins"),
    ),
}

_ORDERS = ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
"""One for each day, in turn."""


def messages_for(seen: QuestView, stage: StageName) -> list[ChatMessage]:
    """The conversation up to the agent's turn to decide on ``seen``."""
    chat = [ChatMessage(role="system", content=_SYSTEM[stage])]
    for number in _ORDERS[start_of(seen.window_id).toordinal() % len(_ORDERS)]:
        example = EXAMPLES[stage][number]
        chat.append(ChatMessage(role="user", content=_layout(example.header, example.errands)))
        chat.append(ChatMessage(role="assistant", content=str(example.choice)))
    header = "" if stage == "one" else f"{seen.place}, {seen.time_of_day}, {seen.coins} coins"
    chat.append(ChatMessage(role="user", content=_layout(header, seen.errands)))
    return chat


def _layout(header: str, errands: tuple[Errand, ...]) -> str:
    lines = [header] if header else []
    for errand in errands:
        marks = [", heavy"] * errand.is_heavy + [", urgent"] * errand.is_urgent
        lines += [f"Bring {errand.name} for {errand.fee}{''.join(marks)}", f"News: {errand.news}"]
    return "\n".join(lines)
