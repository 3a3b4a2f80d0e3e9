"""How a prompt of ours begins an agent's conversation, and how it is found again in the log.

The system text has ``{variable}`` marks that the game fills in; the examples follow as turns. Lessons may stand at the
end of the system text. Which prompt a decision was made with is read from its messages, never from what an agent says
of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from data_bridge.lesson_prompts import without_lessons
from data_bridge.models import AgentTrajectory, ChatMessage, NotText

VARIABLE = re.compile(r"\{([a-z][a-z0-9_]{0,40})\}")


@dataclass(frozen=True, slots=True)
class TemplateExample:
    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class AgentTemplate:
    """A prompt as agents get it."""

    prompt_id: str
    system: str
    examples: tuple[TemplateExample, ...] = ()
    variables: tuple[str, ...] = ()

    @property
    def turns(self) -> list[ChatMessage]:
        return [
            ChatMessage(role=role, content=text)
            for one in self.examples
            for role, text in (("user", one.user), ("assistant", one.assistant))
        ]

    def messages(self, values: Mapping[str, str]) -> list[ChatMessage]:
        """The beginning of a conversation; a variable without a value stays as it is."""
        system = VARIABLE.sub(lambda mark: values.get(mark[1], mark[0]), self.system)
        return [*([ChatMessage(role="system", content=system)] if system else []), *self.turns]


@lru_cache(maxsize=256)
def _filled(system: str) -> re.Pattern[str]:
    """What the system text looks like with any values: one variable twice has one value."""
    seen: set[str] = set()

    def mark(name: str) -> str:
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>.*?)"

    parts = VARIABLE.split(system)
    return re.compile("".join(mark(one) if place % 2 else re.escape(one) for place, one in enumerate(parts)), re.DOTALL)


def values_in(messages: Sequence[ChatMessage], template: AgentTemplate) -> dict[str, str] | None:
    """The game's values in ``messages``, if they begin with ``template``; None if they do not."""
    try:
        chat = [(one.role, one.text()) for one in without_lessons(messages)]
    except NotText:
        return None
    values: dict[str, str] = {}
    if template.system:
        if not chat or chat[0][0] != "system" or (match := _filled(template.system).fullmatch(chat[0][1])) is None:
            return None
        values, chat = match.groupdict(), chat[1:]
    turns = [(one.role, one.text()) for one in template.turns]
    return values if chat[: len(turns)] == turns and len(chat) > len(turns) else None


def prompt_in(messages: Sequence[ChatMessage], templates: Iterable[AgentTemplate]) -> AgentTemplate | None:
    """The template that ``messages`` begin with: the one that says most, if several fit."""
    fitting = [one for one in templates if values_in(messages, one) is not None]
    return max(fitting, key=lambda one: (len(one.examples), len(one.system)), default=None)


def prompts_used(trajectory: AgentTrajectory, templates: Iterable[AgentTemplate]) -> frozenset[str | None]:
    """The ids of the prompts that its calls began with; None stands for the game's own."""
    known = tuple(templates)
    found = (prompt_in(call.chat(), known) for call in trajectory.llm_calls)
    return frozenset(None if one is None else one.prompt_id for one in found)


def with_prompt(
    messages: Sequence[ChatMessage], template: AgentTemplate, values: Mapping[str, str]
) -> list[ChatMessage]:
    """``messages`` of the game's own prompt with ``template`` instead of it: what stands before the last message that
    the agent was sent is replaced."""
    last = next((place for place in range(len(messages) - 1, -1, -1) if messages[place].role == "user"), None)
    return [*template.messages(values), *(messages[last:] if last is not None else ())]
