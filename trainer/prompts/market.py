"""The simulated market's prompt, and what that market offers to mutations. A stand-in for a real game's."""

from __future__ import annotations

from collections.abc import Sequence

from data_bridge.models import ChatMessage
from trainer.prompts.material import PromptMaterial, rules_from
from trainer.prompts.structure import PromptExample, StructuredPrompt, parse
from trainer.world.questions import questions

REPLY = r"(?:BUY|SELL) \$[A-Z]{2,6} (?:[1-9][0-9]?|100)%"
FORMAT = "Reply with one line such as BUY $COIN 20% or SELL $COIN 20%."
FAULTS = ("unreadable", "not_one_line", "unknown_market")
"""What agents of this market do wrong most often, as its parser says."""


def market_prompt() -> StructuredPrompt:
    """What agents of the first stage are given before the last message, as one prompt."""
    messages = questions(4, "trained", "trained")[0].messages
    return prompt_from(messages[:-1])


def prompt_from(messages: Sequence[ChatMessage]) -> StructuredPrompt:
    """The beginning of a conversation as a prompt: its system text, then turns as examples."""
    system = "\n\n".join(one.text() for one in messages if one.role == "system")
    turns = [one for one in messages if one.role != "system"]
    pairs = zip(turns[::2], turns[1::2], strict=False)
    return parse(f"{system}\n").with_examples(PromptExample(user.text(), reply.text()) for user, reply in pairs)


def market_material(codes: Sequence[str] = FAULTS) -> PromptMaterial:
    """``codes``: the errors that happen again and again, the most frequent first.

    No details: that good news is a reason to buy is what agents are to learn, so nothing tells them.
    """
    return PromptMaterial(
        reply=REPLY,
        format_rule=FORMAT,
        examples=market_prompt().examples,
        rules=rules_from(codes),
        fallbacks=(
            "If the news is unclear, follow its strongest word.",
            "If the price and the news disagree, follow the news.",
        ),
        steps=(
            "Find the ticker in the news.",
            "Decide whether the news is good or bad for it.",
            "Reply with one order.",
        ),
    )


def messages_of(prompt: StructuredPrompt, *values: tuple[str, str]) -> list[ChatMessage]:
    """The beginning of a conversation: the system text with the game's values, then the examples as turns."""
    system = prompt.system
    for name, value in values:
        system = system.replace(f"{{{name}}}", value)
    chat = [ChatMessage(role="system", content=system)] if system else []
    for one in prompt.examples:
        chat += [ChatMessage(role="user", content=one.user), ChatMessage(role="assistant", content=one.assistant)]
    return chat
