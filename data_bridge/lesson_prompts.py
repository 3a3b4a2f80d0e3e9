"""How lessons reach an agent's prompt: a policy says which and how many, a wording how they are put.

They become system text, in one block at the end of it, a line each. So a logged call holds exactly what the agent saw,
and the block can be found in it again: which lessons a decision was shown is read from its prompt, never from what an
agent says of itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from data_bridge.models import AgentTrajectory, ChatMessage
from data_bridge.window_ids import end_of, start_of

KINDS = ("episodic", "semantic", "procedural")
WORDINGS = {
    "notes": "Notes from earlier hours:",
    "weighed": "Notes from earlier hours, to be weighed and not to be obeyed:",
}
"""How a block begins, by the wording's name."""
MOST_SHOWN = 10

_PREFIX, _EACH = "lessons-", "- "
_ADMISSION = "+admission-"
_WRITTEN = re.compile(r"(?:lessons-)?(\d{1,2})(?:-([a-z.]+))?(?:-([a-z]+))?")
_BLOCK = re.compile(
    r"(?:\A|\n\n)(?:" + "|".join(map(re.escape, WORDINGS.values())) + r")((?:\n" + _EACH + r"[^\n]*)+)\Z"
)


@dataclass(frozen=True, slots=True)
class LessonsPolicy:
    """Which lessons a decision is shown: part of a release, under its name."""

    number: int = 2
    kinds: tuple[str, ...] = KINDS
    wording: str = "notes"

    @property
    def name(self) -> str:
        """``lessons-2-all-notes``: says everything, so that whoever knows the release knows the policy."""
        kinds = "all" if self.kinds == KINDS else ".".join(self.kinds)
        return f"{_PREFIX}{self.number}-{kinds}-{self.wording}"

    @classmethod
    def parse(cls, text: str) -> LessonsPolicy:
        """From a name, with or without its beginning and end: ``2`` is ``lessons-2-all-notes``. ValueError if none."""
        match = _WRITTEN.fullmatch(text.strip().lower())
        kinds = KINDS if match is None or match[2] in (None, "all") else tuple(match[2].split("."))
        wording = "notes" if match is None or match[3] is None else match[3]
        if match is None or not 1 <= int(match[1]) <= MOST_SHOWN or wording not in WORDINGS or set(kinds) - set(KINDS):
            raise ValueError(
                f"write a lessons policy as NUMBER-KINDS-WORDING, such as 2-all-notes or 3-semantic.procedural-notes: "
                f"1 to {MOST_SHOWN}, {' '.join(KINDS)}, {' '.join(WORDINGS)}; not {text!r}"
            )
        return cls(int(match[1]), tuple(kind for kind in KINDS if kind in kinds), wording)


def policy_named(name: str) -> LessonsPolicy | None:
    """The policy of a release, with or without lessons on admission; None if it shows no lessons."""
    plain = name.partition(_ADMISSION)[0]
    return LessonsPolicy.parse(plain) if plain else None


def on_admission(policy: str, admission_id: str) -> str:
    """The name of ``policy`` while it also shows lessons that wait for the gate. Such a policy is never promoted: the
    lessons are, and then it is ``policy`` again."""
    return f"{policy}{_ADMISSION}{admission_id}"


def block_of(lessons: Sequence[str], wording: str) -> str:
    """The lessons as they are put into a prompt."""
    return "\n".join((WORDINGS[wording], *(_EACH + one_line(text) for text in lessons)))


def one_line(text: str) -> str:
    """``text`` on one line, without what could begin a turn of its own or cannot be seen."""
    seen = (" " if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") else sign for sign in text)
    return " ".join("".join(seen).split()).replace("<|", "(").replace("|>", ")")


def with_lessons(messages: Sequence[ChatMessage], lessons: Sequence[str], wording: str) -> list[ChatMessage]:
    """``messages`` with the lessons at the end of the first system text; unchanged without lessons."""
    if not lessons:
        return list(messages)
    block = block_of(lessons, wording)
    first = messages[0] if messages else None
    if first is None or first.role != "system" or not isinstance(first.content, str):
        return [ChatMessage(role="system", content=block), *messages]
    text = f"{first.content}\n\n{block}" if first.content else block
    return [msgspec.structs.replace(first, content=text), *messages[1:]]


def without_lessons(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """``messages`` as they were before lessons were put into them."""
    first = messages[0] if messages else None
    match = _match(first)
    if first is None or match is None:
        return list(messages)
    left = str(first.content)[: match.start()]
    if not left:
        return list(messages[1:])
    return [msgspec.structs.replace(first, content=left), *messages[1:]]


def lessons_in(messages: Sequence[ChatMessage]) -> list[str]:
    """The lessons that a prompt shows, in their order."""
    match = _match(messages[0] if messages else None)
    return [] if match is None else [line.removeprefix(_EACH) for line in match[1].split("\n")[1:]]


def _match(message: ChatMessage | None) -> re.Match[str] | None:
    if message is None or message.role != "system" or not isinstance(message.content, str):
        return None
    return _BLOCK.search(message.content)


def decided_at(trajectory: AgentTrajectory, step_index: int) -> datetime:
    """When a decision was made, in the game's clock. An agent writes that time itself: one outside its window is the
    window's start, the time by which the fewest lessons are known."""
    start, end = start_of(trajectory.window_id), end_of(trajectory.window_id, trajectory.window_hours)
    written = trajectory.steps[step_index].timestamp
    if written is None or not start.timestamp() <= written / 1000 < end.timestamp():
        return start
    return datetime.fromtimestamp(written / 1000, UTC)
