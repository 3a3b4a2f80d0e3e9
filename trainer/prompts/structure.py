"""A prompt in parts: its task, sections under headings, and worked examples as turns.

Its text is the whole of it: ``parse`` takes any text apart and ``text`` gives it back to the letter. Sections begin
with a line ``## Name``; the section ``## Examples`` holds turns under ``### User`` and ``### Assistant``. Text before
the first heading is the task. ``{name}`` is a variable that the game fills in.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

_HEADING = re.compile(r"^## (?=\S)([^\n]*)\n?", re.MULTILINE)
_VARIABLE = re.compile(r"\{([a-z][a-z0-9_]{0,40})\}")
_USER, _ASSISTANT = "### User", "### Assistant"


class Part(StrEnum):
    TASK = "task"
    CONTEXT = "context"
    RULES = "rules"
    FORMAT = "format"
    STEPS = "steps"
    FALLBACKS = "fallbacks"
    EXAMPLES = "examples"
    OTHER = "other"


_ORDER = {part: place for place, part in enumerate(Part)} | {Part.OTHER: 1}

_NAMES: dict[str, Part] = {
    **{part.value: part for part in Part if part is not Part.OTHER},
    **dict.fromkeys(("goal", "instructions", "role"), Part.TASK),
    **dict.fromkeys(("background", "about", "notes"), Part.CONTEXT),
    **dict.fromkeys(("limits", "constraints", "limitations"), Part.RULES),
    **dict.fromkeys(("output", "output format", "answer", "reply"), Part.FORMAT),
    **dict.fromkeys(("procedure", "sub-tasks"), Part.STEPS),
    **dict.fromkeys(("if something goes wrong", "errors"), Part.FALLBACKS),
}


@dataclass(frozen=True, slots=True)
class PromptExample:
    """What an agent was asked and the reply that was right."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A heading with what stands under it, to the letter; the text before the first heading has none."""

    heading: str | None
    body: str

    @property
    def part(self) -> Part:
        return Part.TASK if self.heading is None else _NAMES.get(self.heading.strip().lower(), Part.OTHER)

    @property
    def text(self) -> str:
        return self.body if self.heading is None else f"## {self.heading}\n{self.body}"

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(line for line in self.body.split("\n") if line.strip())


@dataclass(frozen=True, slots=True)
class StructuredPrompt:
    """A prompt's parts in their order."""

    parts: tuple[PromptPart, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def prompt_id(self) -> str:
        return prompt_id_of(self.text)

    @property
    def examples(self) -> tuple[PromptExample, ...]:
        """Those that are written as turns; nothing else in the section reaches a model."""
        return tuple(one for part in self.parts for one in _examples(part))

    @property
    def system(self) -> str:
        """What an agent's model is given as system text: everything but the examples."""
        return "".join(part.text for part in self.parts if not _examples(part)).strip()

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_VARIABLE.findall(self.system)))

    def of(self, part: Part) -> tuple[PromptPart, ...]:
        return tuple(one for one in self.parts if one.part is part)

    def lines_of(self, part: Part) -> tuple[str, ...]:
        return tuple(line for one in self.of(part) for line in one.lines)

    def with_lines(self, part: Part, lines: Iterable[str]) -> StructuredPrompt:
        """With ``lines`` at the end of the first such section, or in a new one, in the order of ``Part``: the same
        additions in another order give the same prompt."""
        added = "\n".join(lines)
        for place, one in enumerate(self.parts):
            if one.part is part and one.heading is not None:
                body = f"{one.body.rstrip()}\n{added}\n\n" if one.body.strip() else f"{added}\n\n"
                return self._replaced(place, PromptPart(one.heading, body))
        place = next(
            (place for place, one in enumerate(self.parts) if _ORDER[one.part] > _ORDER[part]), len(self.parts)
        )
        new = PromptPart(part.value.capitalize(), f"{added}\n\n")
        return _joined((*self.parts[:place], new, *self.parts[place:]))

    def with_examples(self, examples: Iterable[PromptExample]) -> StructuredPrompt:
        """With these worked examples instead of its own, at the end."""
        kept = [one for one in self.parts if not _examples(one)]
        turns = "".join(f"{_USER}\n{one.user}\n{_ASSISTANT}\n{one.assistant}\n" for one in examples)
        return _joined((*kept, PromptPart("Examples", turns))) if turns else _joined(kept)

    def replaced(self, part: PromptPart, body: str) -> StructuredPrompt:
        """With another text under the same heading; without the part if that is empty."""
        return self._replaced(self.parts.index(part), PromptPart(part.heading, body) if body.strip() else None)

    def _replaced(self, place: int, new: PromptPart | None) -> StructuredPrompt:
        return _joined((*self.parts[:place], *([] if new is None else [new]), *self.parts[place + 1 :]))


def parse(text: str) -> StructuredPrompt:
    """Any text in parts; ``parse(text).text == text``."""
    starts = list(_HEADING.finditer(text))
    ends = [*(one.start() for one in starts[1:]), len(text)]
    parts = (
        [] if starts and starts[0].start() == 0 else [PromptPart(None, text[: starts[0].start() if starts else None])]
    )
    for start, end in zip(starts, ends, strict=bool(starts)):
        if start[0].endswith("\n"):
            parts.append(PromptPart(start[1], text[start.end() : end]))
        else:  # a heading at the very end, with no line after it
            last = parts.pop() if parts else PromptPart(None, "")
            parts.append(PromptPart(last.heading, last.body + start[0]))
    return StructuredPrompt(tuple(parts))


def prompt_id_of(text: str) -> str:
    return f"p-{hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=8).hexdigest()}"


def _joined(parts: Iterable[PromptPart]) -> StructuredPrompt:
    """With an empty line between the parts, as read again from its text."""
    text = "\n\n".join(one.text.strip("\n") for one in parts if one.text.strip())
    return parse(f"{text}\n" if text else "")


def _examples(part: PromptPart) -> list[PromptExample]:
    """The turns of the section, each line read once; none if anything else stands there."""
    if part.part is not Part.EXAMPLES or part.heading is None:
        return []
    found = list[PromptExample]()
    lines = part.body.removesuffix("\n").split("\n")
    place = 0
    while place < len(lines):
        user, replied = _said(lines, place, _USER, _ASSISTANT)
        assistant, end = _said(lines, replied, _ASSISTANT, _USER)
        if not user or not assistant:
            return []
        if end == len(lines):  # empty lines at the end are not the reply's
            assistant = "\n".join(assistant).rstrip("\n").split("\n")
        found.append(PromptExample("\n".join(user), "\n".join(assistant)))
        place = end
    return found


def _said(lines: list[str], place: int, heading: str, following: str) -> tuple[list[str], int]:
    """The lines under the heading at ``place``, of which there is at least one, and where the next heading is."""
    if lines[place : place + 1] != [heading] or place + 1 == len(lines):
        return [], len(lines)
    try:
        end = lines.index(following, place + 2)
    except ValueError:
        end = len(lines)
    return lines[place + 1 : end], end
