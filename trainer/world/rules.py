"""What the shared machinery asks of a simulated world: its rules.

``player``, ``play``, ``record`` and ``replay`` are the same for every world. What an hour, an observation, a decision
or an agent's account is, only the world knows: here they are passed through as they are (``Any``). ``market_rules`` and
``quests.rules`` have the rules of the two worlds, ``worlds`` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from data_bridge.database import Database
from data_bridge.models import Action, ChatMessage
from trainer.world.actions import ActionError
from trainer.world.grammar import FamilyName

Judged = tuple[Any, ActionError | None]
"""The decision in a reply (None if it cannot be read), and why it cannot be executed."""


class SimulatedWorld(Protocol):
    """The settings of a simulated world. The same settings give the same hours on every machine."""

    @property
    def name(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def luck(self) -> float: ...
    @property
    def stage(self) -> Any: ...
    @property
    def decisions(self) -> int: ...

    def hour(self, window_id: str) -> Any:
        """Everything that happens in a window; with ``window_id`` and the ``minutes`` of its decisions."""


class Table(Protocol):
    """One hour while it is played, decision by decision. It knows the world's side, not the agents' accounts."""

    def quotes(self, step: int) -> Any:
        """What stands at a decision, before anybody decides."""

    def clear(self, step: int, decisions: Sequence[Any]) -> Any:
        """Execute all decisions together (None for an agent without one); what came of them."""

    def close(self) -> Any:
        """All that a replay needs besides the hour."""


class AnyQuestion(Protocol):
    """A question with a known answer."""

    @property
    def messages(self) -> tuple[ChatMessage, ...]: ...
    @property
    def headline(self) -> str:
        """What is told; no two questions of a column have the same."""

    @property
    def direction(self) -> int:
        """The right answer."""

    def taken(self, reply: str) -> int | None:
        """The answer in ``reply``; None if it is not an action that can be taken."""

    def answer(self, direction: int) -> str: ...
    def read(self) -> int:
        """What a reader who knows all words answers."""


class WorldRules(Protocol):
    """The rules of one kind of world. Pure, but for ``record_truth``."""

    @property
    def name(self) -> str: ...
    @property
    def edition(self) -> str:
        """Of its hours and prompts. A window of another edition is not replayed."""

    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def balances(self) -> tuple[float, ...]:
        """What agents begin their life with."""

    @property
    def limits(self) -> Any:
        """What agents may do at most, unless it is said otherwise."""

    @property
    def measure(self) -> str:
        """What an agent earns is called."""

    @property
    def unseen_names(self) -> str:
        """What the names that nobody trains on are called."""

    @property
    def tape_type(self) -> type[Any]: ...
    def world(self, seed: int, luck: float, stage: str, decisions: int) -> SimulatedWorld: ...
    def easier(self, world: Any) -> dict[str, Any]:
        """The worlds up to ``world`` by the name of their arm, from easy to hard."""

    def table(self, hour: Any) -> Table: ...
    def quotes_of(self, tape: Any, step: int) -> Any: ...
    def fills_of(self, tape: Any, step: int) -> Any: ...

    # What an agent sees.
    def observe(self, hour: Any, step: int, quotes: Any, book: Any) -> Any: ...
    def messages(self, seen: Any, stage: Any) -> list[ChatMessage]: ...
    def state_of(self, seen: Any) -> str:
        """A signature: how often a state was met is counted by it."""

    def questions(self, number: int, words: FamilyName, names: FamilyName, seed: int = 0) -> Sequence[AnyQuestion]:
        """Questions with trained or unseen words and names."""

    # What an agent may do, and what a script that understands the world would.
    def choices(self, seen: Any, limits: Any) -> Sequence[Any]:
        """Everything that is offered, as decisions."""

    def readings(self, seen: Any, limits: Any) -> Sequence[tuple[Any, Any]]:
        """What is told about an offer, as the decision that follows it and the one that does the opposite."""

    def allowed(self, seen: Any, book: Any, gain: float, limits: Any) -> Sequence[Any]:
        """The offers that the guard would let through."""

    def judge_reply(self, reply: str, seen: Any, book: Any, gain: float, limits: Any) -> Judged: ...
    def follows(self, decision: Any, seen: Any) -> bool | None:
        """Whether a decision follows what is told; None if nothing is told that points anywhere."""

    # What an agent owns.
    def book(self, balance: float, lifetime_pnl: float) -> Any: ...
    def begun(self, book: Any, hour: Any) -> Any:
        """The account at the start of ``hour``."""

    def gain(self, book: Any, quotes: Any) -> float:
        """The agent's profit in the window so far."""

    def result(self, decision: Any, seen: Any, fills: Any, own: Any = None) -> float | None:
        """What came of a decision at once; ``own`` is what the agent had decided, if this is another decision."""

    def after(self, book: Any, decision: Any, seen: Any, result: float | None) -> Any:
        """The account after a decision that was executed."""

    def settled(self, book: Any, tape: Any) -> Any: ...
    def worth(self, decision: Any, result: float | None, book: Any, tape: Any) -> float:
        """The profit of one decision by the end of the window."""

    def forbids_exploring(
        self, book: Any, gain: float, starting_balance: float, limits: Any, *, is_last: bool
    ) -> bool: ...
    def is_far_from_risk(self, book: Any, starting_balance: float) -> bool: ...

    # What is written down.
    def action_type(self, decision: Any) -> str: ...
    def action(
        self, decision: Any, error: ActionError | None, result: float | None, book: Any, hour: Any
    ) -> Action: ...
    def state(self, role: str, seen: Any, book: Any, gain: float) -> Mapping[str, Any]: ...
    def shown(self, seen: Any) -> tuple[str, Mapping[str, Any], str]:
        """What the agent was shown besides its prompt: who showed it, what, and what for."""

    def ending(self, book: Any) -> tuple[float | None, float | None]:
        """The final balance and profit that the trajectory's row has; None for a world without them."""

    async def record_truth(self, database: Database, played: Any) -> None:
        """Write what happened in the window, as the game does."""
