"""Regimes: what things are like for hours at a time, a ticker that rises or a road that is safe.

From hour to hour a regime stays with probability ``PERSISTENCE`` and is drawn anew otherwise, so neighbouring hours are
related, with a lag-1 correlation of exactly that.
"""

from __future__ import annotations

from trainer.world.chance import unit

PERSISTENCE = 0.4
QUIET = 0.15
"""Share of the hours in which what is told of a thing points nowhere."""
SAME_HOURS = 3
"""What an hour is about is drawn for this many hours at a time."""


def coin(*key: object) -> int:
    return 1 if unit(*key) < 0.5 else -1


def regime_of(seed: int, symbol: str, number: int) -> int:
    """Good (+1), quiet (0) or bad (-1). It was drawn at the last hour at which it did not just stay."""
    drawn = number
    while unit(seed, "regime stays", symbol, drawn) < PERSISTENCE:
        drawn -= 1
    if unit(seed, "quiet", symbol, drawn) < QUIET:
        return 0
    return coin(seed, "regime", symbol, drawn)


def turn_of(seed: int, luck: float, symbol: str, number: int) -> int:
    """How the hour goes: as its regime says, or as the coin falls, which it does in quiet hours and by luck."""
    key = (seed, "move", symbol, number)
    direction = regime_of(seed, symbol, number)
    if direction == 0 or unit(*key, "luck") < luck:
        direction = coin(*key, "coin")
    return direction
