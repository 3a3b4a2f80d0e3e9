"""What a game offers to mutations: its format, worked examples, limits and fallbacks, all in the operator's words.

Limits come from error patterns, but only as codes from the closed list, each with a sentence of ours: a text that an
agent can write never reaches a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer.patterns.faults import FAILED, NO_ACTION
from trainer.prompts.structure import PromptExample

RULE_OF: Mapping[str, str] = {
    "empty_reply": "Always reply; an empty reply is an error.",
    "not_one_line": "Reply with one line and nothing else.",
    "unreadable": "Reply with the action alone, without any explanation.",
    "not_offered": "Choose only what is offered now.",
    "unknown_market": "Name only what is listed now, spelled as it is there.",
    "order_limit": "Do not exceed the number of orders that is allowed.",
    "unknown_errand": "Name only an errand that is on the board, spelled as it is there.",
    "no_coins": "Do not hire a guard that costs more coins than you have.",
    "no_balance": "Do not spend what you do not have.",
    "loss_limit": "Stop when the loss limit is reached.",
    "position_limit": "Keep every position within its limit.",
    "over_balance": "Keep the size of an order within the balance.",
    NO_ACTION: "End every reply with an action.",
    FAILED: "Check that the action is possible before you choose it.",
}
"""What to say about an error that happens again and again."""


@dataclass(frozen=True, slots=True)
class PromptMaterial:
    """The defaults are true of any game; a game that knows more says it."""

    reply: str | None = None
    """Regular expression of a whole valid reply; None: any reply is valid."""
    format_rule: str = ""
    """One sentence that says what a valid reply is."""
    examples: tuple[PromptExample, ...] = ()
    """Worked examples with valid replies, the most useful first."""
    details: tuple[str, ...] = ()
    """Facts that help to decide, a sentence each."""
    rules: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = (
        "If something you need is missing, decide with what you have.",
        "If two sources disagree, use the newer one.",
        "If you are not sure, choose the smaller risk, still in the required format.",
    )
    steps: tuple[str, ...] = ("Read what is new.", "Decide what it means.", "Reply with one action.")

    def accepts(self, reply: str) -> bool:
        return self.reply is None or re.fullmatch(self.reply, reply.strip()) is not None


def rules_from(codes: Iterable[str]) -> tuple[str, ...]:
    """A rule for each known code, in the order given: the most frequent first. Unknown codes give none."""
    return tuple(dict.fromkeys(RULE_OF[code] for code in codes if code in RULE_OF))
