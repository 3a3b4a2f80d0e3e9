"""How a prompt of ours begins an agent's conversation, and how it is found again in the log.

The system text has ``{variable}`` marks that the game fills in; the examples follow as turns. Lessons may stand at the
end of the system text. Which prompt a decision was made with is read from its messages, never from what an agent says
of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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


_MOST_TRIES = 1024
"""Ends of values that are tried for a text with a variable that stands twice. Without one the first end is the right
one, so that nothing an agent logs can make this slow, as it could with a regular expression."""


def _filled_in(system: str, text: str) -> dict[str, str] | None:
    """The values with which ``system`` becomes ``text``, each the shortest that fits; one variable has one value."""
    first, *rest = VARIABLE.split(system)
    if not rest or not text.startswith(first):
        return {} if text == system else None
    marks = list(zip(rest[::2], rest[1::2], strict=True))
    stands_twice = len(marks) > len({name for name, _ in marks})
    return _values_from(text, len(first), marks, {}, iter(range(_MOST_TRIES if stands_twice else len(marks))))


def _values_from(
    text: str, place: int, marks: list[tuple[str, str]], values: dict[str, str], tries: Iterator[int]
) -> dict[str, str] | None:
    """``values`` with those of ``marks``, variables with the text after each, which begin at ``place``."""
    if not marks:
        return values
    (name, following), *_ = marks
    known = next((at for at, (other, _) in enumerate(marks) if other not in values and other != name), len(marks))
    run, is_last = marks[1:known], known == len(marks)
    end = text.find(following, place)
    if is_last and all(other != name for other, _ in run):  # then it ends so far before the end of the text
        end = len(text) - len(following) - sum(len(values[other]) + len(after) for other, after in run)
        end = end if end >= place else -1
    while end >= 0 and next(tries, None) is not None:
        filled = {**values, name: text[place:end]}
        written = following + "".join(filled[other] + after for other, after in run)
        behind = end + len(written)
        if text.startswith(written, end) and (not is_last or behind == len(text)):
            found = _values_from(text, behind, marks[known:], filled, tries)
            if found is not None:
                return found
        end = text.find(following, end + 1)
    return None


def values_in(messages: Sequence[ChatMessage], template: AgentTemplate) -> dict[str, str] | None:
    """The game's values in ``messages``, if they begin with ``template``; None if they do not."""
    try:
        chat = [(one.role, one.text()) for one in without_lessons(messages)]
    except NotText:
        return None
    values: dict[str, str] = {}
    if template.system:
        found = _filled_in(template.system, chat[0][1]) if chat and chat[0][0] == "system" else None
        if found is None:
            return None
        values, chat = found, chat[1:]
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
