"""What a window would have come to without an agent's decisions: the exchange is played again with HOLD in their place.

Agents meet in one auction, so a decision moves the price for all others a little (``exchange.IMPACT``): what the window
would have made without it is not only that agent's own result. Where nobody moves a price, it is exactly that. The
others' decisions stay as they were: how they would have decided at other prices is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from data_bridge.models import AgentTrajectory, WindowOutcomes
from trainer.world.actions import Decision
from trainer.world.exchange import Book, Exchange, Tape, fill_price
from trainer.world.market import Hour, outcomes_of
from trainer.world.replay import SimulatedWindow, decision_points

Orders = tuple[Decision | None, ...]
"""Of one agent, decision by decision; None where it held or failed."""

_STAKE = 10_000.0
"""Orders are sized by the stake, so returns do not depend on it."""


@dataclass(frozen=True)
class PlayedOrders:
    """A window with the orders of all its agents."""

    hour: Hour
    orders: dict[str, Orders]
    """By trajectory."""

    @cached_property
    def tape(self) -> Tape:
        return self._played(self.orders)

    def returns(self) -> dict[str, float]:
        """What each agent made of its stake."""
        return _returns(self.orders, self.tape)

    def without(self, trajectory_id: str, step: int | None = None) -> PlayedOrders:
        """The same window with HOLD for all decisions of an agent, or for the one of ``step``."""
        own = self.orders[trajectory_id]
        held = tuple(None if step is None or place == step else one for place, one in enumerate(own))
        return PlayedOrders(self.hour, self.orders | {trajectory_id: held})

    def contribution(self, trajectory_id: str) -> float:
        """How much more all agents made together, as shares of their stakes, than if this one had held."""
        return sum(self.returns().values()) - sum(self.without(trajectory_id).returns().values())

    def outcomes(self) -> WindowOutcomes:
        """The ground truth, as the game would have written it."""
        return outcomes_of(self.hour, self.tape.closing, self.tape.closing)

    def _played(self, orders: dict[str, Orders]) -> Tape:
        exchange = Exchange(self.hour)
        for step in range(len(self.hour.minutes)):
            exchange.clear(step, [own[step] for own in orders.values()])
        return exchange.close()


def played_orders(window: SimulatedWindow, trajectories: Sequence[AgentTrajectory]) -> PlayedOrders | None:
    """The window from its log; None if that does not give the prices that were played, as without one of its rows."""
    hour = window.hour()
    if not isinstance(hour, Hour):
        return None
    orders = {one.trajectory_id: _orders(window, one) for one in trajectories}
    if any(len(own) != len(hour.minutes) for own in orders.values()):
        return None
    found = PlayedOrders(hour, orders)
    return found if orders and found.tape == window.tape else None


def _orders(window: SimulatedWindow, trajectory: AgentTrajectory) -> Orders:
    found: list[Decision | None] = []
    for point, step in zip(decision_points(window, trajectory), trajectory.steps, strict=False):
        reply = step.llm_calls[-1].response if step.llm_calls else ""
        decision, error = point.read(reply)
        found.append(decision if error is None and decision is not None and decision.market else None)
    return tuple(found)


def _returns(orders: dict[str, Orders], tape: Tape) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, own in orders.items():
        book = Book(_STAKE, 0.0)
        for decision, fills in zip(own, tape.fills, strict=True):
            if decision is not None:
                book = book.filled(decision, fill_price(decision, fills))
        found[name] = book.gain(tape.settlement) / _STAKE
    return found
