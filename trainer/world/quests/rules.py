"""The rules of the quest world, for the machinery that all worlds share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from data_bridge.database import Database
from data_bridge.models import Action, ChatMessage
from trainer.evidence import UNSEEN_PLACES
from trainer.world.actions import ActionError
from trainer.world.grammar import FamilyName
from trainer.world.quests.carrying import (
    DEFAULT_STRENGTH,
    GUARD,
    WAIT,
    Journeys,
    Purse,
    QuestChoice,
    QuestTape,
    Roads,
    Strength,
    coins_of,
    parse,
    why_not,
)
from trainer.world.quests.errands import EDITION, STAGES, QuestHour, Quests, StageName, told
from trainer.world.quests.questions import RoadQuestion, questions
from trainer.world.quests.truth import record_truth
from trainer.world.quests.view import QuestView, messages_for, view_of

INVALID = "INVALID"
"""The action type of a reply that is not an action."""


@dataclass(frozen=True, slots=True)
class QuestRules:
    """See ``rules.WorldRules``."""

    name: ClassVar[str] = "quests"
    edition: ClassVar[str] = EDITION
    roles: ClassVar[tuple[str, ...]] = ("courier", "ranger", "smuggler", "pilgrim", "sailor")
    balances: ClassVar[tuple[float, ...]] = (0.0,)
    limits: ClassVar[Strength] = DEFAULT_STRENGTH
    measure: ClassVar[str] = "coins"
    unseen_names: ClassVar[str] = UNSEEN_PLACES
    tape_type: ClassVar[type[QuestTape]] = QuestTape

    def world(self, seed: int, luck: float, stage: str, decisions: int) -> Quests:
        return Quests(seed, luck, cast("StageName", stage), decisions)

    def easier(self, world: Any) -> dict[str, Any]:
        stages = list(STAGES)[: list(STAGES).index(world.stage) + 1]
        found = [replace(world, stage=one, luck=luck) for one in stages for luck in sorted({0.0, world.luck})]
        return {f"{one.stage}, luck {one.luck:g}": one for one in found}

    def table(self, hour: QuestHour) -> Journeys:
        return Journeys(hour)

    def quotes_of(self, tape: QuestTape, step: int) -> None:
        return None

    def fills_of(self, tape: QuestTape, step: int) -> Roads:
        return tape.roads[step]

    def observe(self, hour: QuestHour, step: int, quotes: None, book: Purse) -> QuestView:
        return view_of(hour, step, book.place, book.coins)

    def messages(self, seen: QuestView, stage: StageName) -> list[ChatMessage]:
        return messages_for(seen, stage)

    def state_of(self, seen: QuestView) -> str:
        kinds = {"urgent": any(one.is_urgent for one in seen.errands), "heavy": any(e.is_heavy for e in seen.errands)}
        marks = "".join(f", {name}" for name, is_so in kinds.items() if is_so)
        return f"{seen.place}, decision {seen.step + 1}, {len(seen.offers)} offers{marks}"

    def questions(self, number: int, words: FamilyName, names: FamilyName, seed: int = 0) -> Sequence[RoadQuestion]:
        return questions(number, words, names, seed)

    def choices(self, seen: QuestView, limits: Strength) -> Sequence[QuestChoice]:
        return seen.offers

    def readings(self, seen: QuestView, limits: Strength) -> Sequence[tuple[QuestChoice, QuestChoice]]:
        found: list[tuple[QuestChoice, QuestChoice]] = []
        for errand in seen.errands:
            trusting = next(one for one in seen.offers if one.errand == errand.name and one.verb != GUARD)
            wary = next(
                (one for one in (QuestChoice(GUARD, errand.name), QuestChoice(WAIT)) if one in seen.offers), None
            )
            if wary is not None and (said := told(errand)):
                found.append((trusting, wary) if said > 0 else (wary, trusting))
        return found

    def allowed(self, seen: QuestView, book: Purse, gain: float, limits: Strength) -> Sequence[QuestChoice]:
        return seen.offers

    def judge_reply(
        self, reply: str, seen: QuestView, book: Purse, gain: float, limits: Strength
    ) -> tuple[QuestChoice | None, ActionError | None]:
        parsed = parse(reply)
        if isinstance(parsed, ActionError):
            return None, parsed
        return parsed, why_not(parsed, seen.offers, seen.errands, seen.coins)

    def follows(self, decision: QuestChoice, seen: QuestView) -> bool | None:
        read = self.readings(seen, DEFAULT_STRENGTH)
        return decision in [right for right, _ in read] if read else None

    def book(self, balance: float, lifetime_pnl: float) -> Purse:
        return Purse(balance, lifetime_pnl)

    def begun(self, book: Purse, hour: QuestHour) -> Purse:
        return book.begun(hour)

    def gain(self, book: Purse, quotes: None) -> float:
        return book.earned

    def result(
        self, decision: QuestChoice, seen: QuestView, fills: Roads, own: QuestChoice | None = None
    ) -> float | None:
        errand = seen.errand(decision)
        return None if errand is None else coins_of(decision, errand, fills, own)

    def after(self, book: Purse, decision: QuestChoice, seen: QuestView, result: float | None) -> Purse:
        """An errand that came to nothing leaves the agent where it was."""
        errand = seen.errand(decision)
        if errand is None or result is None:
            return book
        arrived = result > 0 or decision.verb == GUARD
        return replace(book, earned=book.earned + result, place=errand.place if arrived else book.place)

    def settled(self, book: Purse, tape: QuestTape) -> Purse:
        return book.settled()

    def worth(self, decision: QuestChoice, result: float | None, book: Purse, tape: QuestTape) -> float:
        return result or 0.0

    def forbids_exploring(
        self, book: Purse, gain: float, starting_balance: float, limits: Strength, *, is_last: bool
    ) -> bool:
        """Risky: half of the supplies are gone. Urgent: nothing is left, and this is the last decision."""
        return book.coins < book.supplies / 2 or (is_last and book.coins == 0)

    def is_far_from_risk(self, book: Purse, starting_balance: float) -> bool:
        return True  # supplies are given anew every hour

    def action_type(self, decision: QuestChoice) -> str:
        return decision.verb

    def action(
        self,
        decision: QuestChoice | None,
        error: ActionError | None,
        result: float | None,
        book: Purse,
        hour: QuestHour,
    ) -> Action:
        """The action in the game's terms. A failed one keeps what it tried, and why it failed."""
        if decision is None:
            return Action(action_type=INVALID, success=False, error=str(error))
        return Action(
            action_type=decision.verb,
            parameters={"errand": decision.errand} if decision.errand else {},
            success=error is None,
            result={"coins": result} if result is not None else None,
            error=None if error is None else str(error),
        )

    def state(self, role: str, seen: QuestView, book: Purse, gain: float) -> Mapping[str, Any]:
        day, _, time = seen.time_of_day.partition(" ")
        return {
            "place": seen.place,
            "hour": time,
            "day": day,
            "urgency": "urgent" if any(one.is_urgent for one in seen.errands) else "none",
            "coins": seen.coins,
            "role": role,
        }

    def shown(self, seen: QuestView) -> tuple[str, Mapping[str, Any], str]:
        errands = [{"errand": one.name, "fee": one.fee, "news": one.news} for one in seen.errands]
        return "BOARD", {"place": seen.place, "errands": errands}, "errands and news"

    def ending(self, book: Purse) -> tuple[float | None, float | None]:
        return None, None  # what was earned is a fact

    async def record_truth(self, database: Database, played: Any) -> None:
        await record_truth(database, played)
