"""Carrying out errands: the action format, what is allowed, what comes of it, and the agents' purses.

    GO lamp to Harbor     GUARD lamp to Harbor     JOIN drum to Castle     WAIT

One short line that a small model can learn, and nothing else. All agents of a decision set out together: how many
carry the same heavy load decides what they are able to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from trainer.world.actions import ActionError, blocked, not_an_action
from trainer.world.quests.errands import Errand, QuestHour

GO, GUARD, JOIN, WAIT = "GO", "GUARD", "JOIN", "WAIT"

_LINE = re.compile(r"(?P<verb>GO|GUARD|JOIN) (?P<item>[a-z]{2,12}) to (?P<place>[A-Z][a-z]{2,12})")


@dataclass(frozen=True, slots=True)
class QuestChoice:
    """What the agent wants to do. WAIT has no errand."""

    verb: str
    errand: str = ""
    """Its name: ``lamp to Harbor``."""

    @property
    def direction(self) -> int:
        """Trusts the road (+1), or does not (-1)."""
        return 1 if self.verb in (GO, JOIN) else -1

    def __str__(self) -> str:
        return f"{self.verb} {self.errand}".rstrip()


def parse(reply: str) -> QuestChoice | ActionError:
    """The choice in ``reply``, or why there is none. White space around the line is allowed, nothing else."""
    line = reply.strip()
    if line == WAIT:
        return QuestChoice(WAIT)
    match = _LINE.fullmatch(line)
    if match is not None:
        return QuestChoice(match["verb"], f"{match['item']} to {match['place']}")
    return not_an_action(line, "GO lamp to Harbor")


@dataclass(frozen=True, slots=True)
class Strength:
    """What agents are able to do together."""

    carriers: int = 2
    """So many carry a heavy load."""
    defenders: int = 3
    """So many drive off robbers as well."""


DEFAULT_STRENGTH = Strength()


@dataclass(frozen=True, slots=True)
class Purse:
    """What one agent has in one window. Immutable: an errand returns the next one."""

    balance: float
    """Coins earned in its life so far, before the window."""
    lifetime_pnl: float
    """The same, less what it began with."""
    place: str = ""
    supplies: int = 0
    earned: float = 0.0
    errors: int = 0

    @property
    def coins(self) -> int:
        """What it can spend now."""
        return max(0, round(self.supplies + self.earned))

    def with_error(self) -> Purse:
        return replace(self, errors=self.errors + 1)

    def begun(self, hour: QuestHour) -> Purse:
        return replace(self, place=hour.start, supplies=hour.supplies, earned=0.0, errors=0)

    def settled(self) -> Purse:
        """After the window: what was earned is put away. Supplies are given anew every hour."""
        return replace(
            self,
            balance=round(self.balance + self.earned, 2),
            lifetime_pnl=round(self.lifetime_pnl + self.earned, 2),
            earned=0.0,
        )


class Roads(msgspec.Struct, frozen=True):
    """What happened at one decision."""

    robbed: tuple[str, ...]
    """The places on whose roads robbers came."""
    joined: dict[str, int]
    """How many joined for each heavy load, by its errand."""
    strength: Strength = DEFAULT_STRENGTH


class QuestTape(msgspec.Struct, frozen=True):
    """What happened in a played hour: all that a replay needs besides the hour."""

    roads: tuple[Roads, ...]
    """At each decision."""


class Journeys:
    """Plays one hour forward, decision by decision."""

    def __init__(self, hour: QuestHour) -> None:
        self.hour = hour
        self._roads: list[Roads] = []

    def quotes(self, step: int) -> None:
        """Nothing stands at a decision but the boards, which are the hour's."""

    def clear(self, step: int, decisions: Sequence[QuestChoice | None]) -> Roads:
        joined: dict[str, int] = {}
        for choice in decisions:
            if choice is not None and choice.verb == JOIN:
                joined[choice.errand] = joined.get(choice.errand, 0) + 1
        robbed = tuple(place for place in self.hour.places if self.hour.has_robbers(place))
        self._roads.append(Roads(robbed, joined))
        return self._roads[-1]

    def close(self) -> QuestTape:
        return QuestTape(tuple(self._roads))


def coins_of(choice: QuestChoice, errand: Errand, roads: Roads, own: QuestChoice | None = None) -> float:
    """The coins that ``choice`` brings. ``own`` is what the agent had chosen when the hour was played."""
    has_robbers = errand.place in roads.robbed
    if choice.verb == GO:
        succeeds = not has_robbers
    elif choice.verb == GUARD:
        succeeds = has_robbers
    else:
        others = roads.joined.get(errand.name, 0) - (1 if own == choice else 0)
        needed = roads.strength.defenders if has_robbers else roads.strength.carriers
        succeeds = others + 1 >= needed
    return float(errand.fee if succeeds else -errand.fee)


def why_not(
    choice: QuestChoice, offered: Sequence[QuestChoice], errands: Sequence[Errand], coins: int
) -> ActionError | None:
    """Why ``choice`` is stopped, or None."""
    if choice in offered:
        return None
    errand = next((one for one in errands if one.name == choice.errand), None)
    if choice.verb == WAIT:
        return blocked("not_offered", "nobody can wait here now")
    if errand is None:
        return blocked("unknown_errand", f"{choice.errand} is not on the board")
    if choice.verb == GUARD and not errand.is_heavy and coins < errand.guard_price:
        return blocked("no_coins", f"a guard costs {errand.guard_price} coins, and the agent has {coins}")
    return blocked("not_offered", f"{choice} is not possible now")
