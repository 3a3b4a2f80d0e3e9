"""Shaping by a potential: what a state is worth by itself is not credited to the decision that is taken in it.

Each decision's score is changed by ``discount * potential(next state) - potential(state)``; the state after the last
decision has the potential 0. In a discounted return these terms cancel but for the first: what remains is minus the
potential of the state in which the decision was taken (Ng, Harada and Russell, 1999). So whole trajectories that began
alike keep their order, whatever the potential is, and an agent that writes another account into its row only moves
credit between its own decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from data_bridge.models import AgentTrajectory, Step

PotentialName = Literal["off", "equity"]


def equity(trajectory: AgentTrajectory, decisions: Sequence[Step]) -> list[float]:
    """By each decision, what the account had gained on the balance that it began with: 0 at the first, within ±1.

    It is what the row says of itself; where it says nothing, 0.
    """
    balance = trajectory.starting_balance
    if balance is None or not math.isfinite(balance) or balance <= 0 or not decisions:
        return [0.0] * len(decisions)
    began = decisions[0].state.lifetime_pnl
    gains = [
        step.state.lifetime_pnl - began if began is not None and step.state.lifetime_pnl is not None else 0.0
        for step in decisions
    ]
    return [max(-1.0, min(1.0, gain / balance)) if math.isfinite(gain) else 0.0 for gain in gains]


def shaping(potential: float, ahead: int, discount: float) -> float:
    """What the terms of the ``ahead`` decisions from here on add to a return, which is a mean weighted by the discount.

    They telescope, so that neither the later potentials nor the order of a sum matter for its bits.
    """
    return -potential / sum(discount**place for place in range(ahead))
