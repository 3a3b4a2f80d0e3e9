"""What a lesson is, for whoever makes, stores, finds or shows one. Nothing here imports torch.

A lesson is shown only to decisions after it was known: ``known_at`` is in the game's clock, and whoever looks for
lessons must say as of when.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

LONGEST_TITLE = 200
LONGEST_CONTENT = 2_000
"""Characters; longer text is cut, or refused where it comes from outside."""


class LessonKind(StrEnum):
    EPISODIC = "episodic"
    """One judged decision: what was seen in brief, what was decided, what came of it."""
    SEMANTIC = "semantic"
    """A rule merged from episodes, with counts for and against it."""
    PROCEDURAL = "procedural"
    """What to do about an error that happens again and again."""


class Trust(StrEnum):
    """Where a lesson's words come from."""

    VERDICT = "verdict"
    """By template from outcomes and verdicts."""
    JUDGE = "judge"
    """Worded by the judge's model from outcomes and verdicts."""
    API = "api"
    """From outside: quoted, and not shown to agents until it is gated."""


ALL_KINDS = tuple(LessonKind)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whom a lesson is for, or who asks. A lesson without a role or an agent is for all of them."""

    game: str
    role: str | None = None
    agent_id: str | None = None


@dataclass(frozen=True, slots=True)
class LessonSource:
    """One judged trajectory that a lesson rests on."""

    trajectory_id: str
    agent_id: str
    window_id: str
    known_at: datetime
    verdict_key: str = ""
    agrees: bool = True
    """False: it speaks against the lesson."""


@dataclass(frozen=True, slots=True)
class NewLesson:
    """A lesson that is to be stored."""

    kind: LessonKind
    scope: Scope
    title: str
    content: str
    known_at: datetime
    trust: Trust
    importance: float = 0.5
    about: str = ""
    """The decision it is about, in a word: lessons about different ones are never merged."""
    stance: int = 0
    """1: this worked; -1: this failed; 0: neither."""
    sources: tuple[LessonSource, ...] = ()

    @property
    def lesson_id(self) -> str:
        """The same for the same kind, scope, trust and words, so that a lesson is stored once."""
        parts = (
            *(self.kind.value, self.scope.game, self.scope.role or "", self.scope.agent_id or "", self.trust.value),
            *(plain(self.title), plain(self.content)),
        )
        return hashlib.blake2b("\x1f".join(parts).encode(), digest_size=16).hexdigest()

    @property
    def text(self) -> str:
        """What is embedded and searched."""
        return f"{self.title}. {self.content}"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A stored lesson."""

    lesson_id: str
    kind: LessonKind
    scope: Scope
    title: str
    content: str
    about: str
    stance: int
    importance: float
    support: int
    contradictions: int
    uses: int
    last_used_at: datetime | None
    usefulness: float | None
    """Mean score of the decisions that it was shown to, above their groups' means; None if none was scored yet."""
    scored_uses: int
    trust: Trust
    known_at: datetime
    made_at: datetime
    gated_at: datetime | None
    retired_at: datetime | None
    retired_because: str
    sources: tuple[LessonSource, ...] = field(default=())

    @property
    def shown(self) -> str:
        """The text that an agent is shown: no counts, which may be of later than the decision."""
        return f"{self.title}: {self.content}"


@dataclass(frozen=True, slots=True)
class FoundLesson:
    """A lesson and how it was found."""

    lesson: Lesson
    score: float
    """By reciprocal rank, of both rankings together."""
    cosine: float
    """How near its meaning is."""
    words: float
    """How many of its words it shares, the rare ones counting more; 0: none."""


class Embedder(Protocol):
    """Turns texts into vectors of length 1."""

    @property
    def name(self) -> str:
        """Which model: vectors of different ones cannot be compared."""
        ...

    @property
    def dimensions(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """One row for each text. BackendError if that cannot be done now."""
        ...

    async def close(self) -> None: ...


class Recall(Protocol):
    """Looks lessons up for a decision: what players and agents are handed."""

    async def retrieve(
        self,
        context: str,
        scope: Scope,
        *,
        as_of: datetime,
        k: int = 3,
        kinds: Sequence[LessonKind] = ALL_KINDS,
    ) -> list[FoundLesson]:
        """The lessons nearest to ``context`` that were known at ``as_of``, best first; at most ``k``.

        Never one with ``known_at`` after ``as_of``, a retired one, one from a window that an evaluation waits to
        rule on, or one from outside that is not gated.
        """
        ...


_SPACE = re.compile(r"\s+")


def plain(text: str) -> str:
    """``text`` without what does not change its meaning: case, spaces, final stops."""
    return _SPACE.sub(" ", text).strip().rstrip(".!").casefold()
