"""The action format: one short line that a small model can learn, and nothing else.

    BUY $COIN 20%     SELL $COIN 20%     YES #1 2%     NO #1 2%     HOLD

The size is a share of the agent's stake for the hour. Any text before or after the line is an error: a reply whose
meaning has to be guessed is not an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BUY, SELL, YES, NO, HOLD = "BUY", "SELL", "YES", "NO", "HOLD"

MAX_REPLY_TOKENS = 12
"""Enough for any action in the embedded model's tokens, end-of-sequence included."""

_TRADE = re.compile(r"(?P<verb>BUY|SELL) (?P<market>\$[A-Z]{2,6}) (?P<percent>[1-9][0-9]?|100)%")
_BET = re.compile(r"(?P<verb>YES|NO) (?P<market>#[1-9][0-9]?) (?P<percent>[1-9][0-9]?|100)%")


@dataclass(frozen=True, slots=True)
class Decision:
    """What the agent wants to do. HOLD has no market and no size."""

    verb: str
    market: str = ""
    percent: int = 0

    @property
    def direction(self) -> int:
        """Up (+1), down (-1), or neither (0)."""
        return {BUY: 1, YES: 1, SELL: -1, NO: -1}.get(self.verb, 0)

    def __str__(self) -> str:
        return HOLD if self.verb == HOLD else f"{self.verb} {self.market} {self.percent}%"


@dataclass(frozen=True, slots=True)
class ActionError:
    """Why nothing was done. ``reason`` is from a closed list; ``blocked`` if the safety guard stopped it."""

    reason: str
    detail: str
    blocked: bool = False

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


def parse(reply: str) -> Decision | ActionError:
    """The decision in ``reply``, or why there is none. White space around the line is allowed, nothing else."""
    line = reply.strip()
    if line == HOLD:
        return Decision(HOLD)
    match = _TRADE.fullmatch(line) or _BET.fullmatch(line)
    if match is not None:
        return Decision(match["verb"], match["market"], int(match["percent"]))
    return not_an_action(line, "BUY $COIN 20%")


def not_an_action(line: str, example: str) -> ActionError:
    """Why ``line`` cannot be read as an action such as ``example``."""
    if not line:
        return ActionError("empty_reply", "the reply is empty")
    if "\n" in line:
        return ActionError("not_one_line", "the reply has more than one line")
    return ActionError("unreadable", f"the reply is not an action such as {example}")


def blocked(reason: str, detail: str) -> ActionError:
    """An action that the safety guard stopped."""
    return ActionError(reason, detail, blocked=True)
