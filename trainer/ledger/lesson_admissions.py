"""Lessons from outside on their way through the gate: who asked for which; those that passed are shown from then on.

An admission is a set of waiting lessons under a digest of their ids. Its evaluation is one of a release whose lessons
policy ends with that digest, so that the ruling, what it consulted and what it spent are in the ledger like any other.
What is shown follows from the ruling alone: killed between the ruling and ``settle_admissions``, the next call of it
does what is left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from data_bridge.database import Database
from data_bridge.lesson_prompts import on_admission
from data_bridge.redaction import redact
from trainer.ledger.lessons import gate_lessons
from trainer.ledger.turns import one_at_a_time


@dataclass(frozen=True, slots=True)
class Admission:
    """Lessons that are put to the gate together."""

    admission_id: str
    lesson_ids: tuple[str, ...]
    agents: frozenset[str] | None
    """Whose decisions they can be shown to; None: everybody's."""
    known_at: datetime
    """When the last of them was known: no earlier decision is shown them all."""

    def policy_with(self, policy: str) -> str:
        """The lessons policy of the release that is evaluated: ``policy``, and these lessons among the others."""
        return on_admission(policy, self.admission_id)


def _admission(rows: Sequence[Any]) -> Admission | None:
    if not rows:
        return None
    ids = tuple(sorted(row["lesson_id"] for row in rows))
    digest = hashlib.blake2b("\x1f".join(ids).encode(), digest_size=8).hexdigest()
    agents = frozenset(row["agent_id"] for row in rows)
    return Admission(digest, ids, None if None in agents else agents, max(row["known_at"] for row in rows))


_WAITS = "l.trust = 'api' AND l.gated_at IS NULL AND l.retired_at IS NULL"


async def waiting_lessons(source: Any, game: str, agent_id: str | None) -> Admission | None:
    """The lessons from outside that wait for the gate, of one agent or of all; None if there are none."""
    rows = await source.fetch(
        f"SELECT l.lesson_id, l.agent_id, l.known_at FROM hindsight.lessons l WHERE l.game = $1 AND {_WAITS}"
        " AND ($2::text IS NULL OR l.agent_id = $2)",
        *(game, agent_id),
    )
    return _admission(rows)


async def admission_named(source: Any, admission_id: str) -> Admission | None:
    """Those of its lessons that still wait; None if none does."""
    rows = await source.fetch(
        "SELECT l.lesson_id, l.agent_id, l.known_at FROM hindsight.lessons l"
        f" JOIN hindsight.admission_lessons a USING (lesson_id) WHERE a.admission_id = $1 AND {_WAITS}",
        admission_id,
    )
    return _admission(rows)


async def keep_admission(
    database: Database, admission: Admission, game: str, agent_id: str | None, *, asked_by: str, is_wanted: bool
) -> None:
    """Write down what is put to the gate. ``is_wanted``: a host that is idle is to try it."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO hindsight.lesson_admissions (admission_id, game, agent_id, asked_by, is_wanted)"
            " VALUES ($1, $2, $3, $4, $5) ON CONFLICT (admission_id) DO UPDATE SET"
            " is_wanted = lesson_admissions.is_wanted OR EXCLUDED.is_wanted, asked_by = EXCLUDED.asked_by,"
            " asked_at = now()",
            *(admission.admission_id, game, agent_id, asked_by, is_wanted),
        )
        await connection.execute(
            "INSERT INTO hindsight.admission_lessons (admission_id, lesson_id)"
            " SELECT $1, l.lesson_id FROM hindsight.lessons l WHERE l.lesson_id = ANY($2) ON CONFLICT DO NOTHING",
            *(admission.admission_id, list(admission.lesson_ids)),
        )


async def note_try(source: Any, admission_id: str, outcome: str) -> None:
    """What a try came to; nobody is asked to try it again."""
    await source.execute(
        "UPDATE hindsight.lesson_admissions SET is_wanted = false, outcome = $2, tried_at = now()"
        " WHERE admission_id = $1",
        *(admission_id, redact(outcome)[:1000]),
    )


async def wanted_admissions(source: Any, game: str) -> list[str]:
    """Those that somebody asked for and no host has tried, the oldest first."""
    rows = await source.fetch(
        "SELECT admission_id FROM hindsight.lesson_admissions WHERE game = $1 AND is_wanted ORDER BY asked_at", game
    )
    return [row["admission_id"] for row in rows]


def one_admission_at_a_time(database: Database, game: str) -> AbstractAsyncContextManager[bool]:
    """False if another process is at it: an evaluation costs, and its windows count for one. Ends with the process."""
    return one_at_a_time(database, f"admissions {game}")


# The newest ruling on the very lessons of an admission, whichever checkpoint they were shown with.
_RULING = """
SELECT e.ruling, e.reasons, e.ruled_at, e.evaluation_id FROM hindsight.evaluations e
 WHERE right(e.lessons_policy, length(a.admission_id) + 11) = '+admission-' || a.admission_id AND e.ruling IS NOT NULL
 ORDER BY e.ruled_at DESC, e.created_at DESC LIMIT 1
"""


async def settle_admissions(database: Database, game: str) -> int:
    """Show what passed the gate, and only that; returns how many lessons. Idempotent."""
    async with database.pool.acquire() as connection, connection.transaction():
        rows = await connection.fetch(
            "SELECT DISTINCT l.lesson_id FROM hindsight.lesson_admissions a"
            f" JOIN LATERAL ({_RULING}) r ON r.ruling = 'promote'"
            " JOIN hindsight.admission_lessons m USING (admission_id) JOIN hindsight.lessons l USING (lesson_id)"
            f" WHERE a.game = $1 AND {_WAITS}",
            game,
        )
        return await gate_lessons(connection, [row["lesson_id"] for row in rows]) if rows else 0


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """An admission for people."""

    admission_id: str
    agent_id: str | None
    lessons: int
    shown: int
    """How many of them agents may be shown now."""
    state: str
    """``waiting`` for a host; ``promote``, ``refuse``, ``undecided``; ``tried`` if there is no ruling."""
    outcome: str
    asked_by: str
    asked_at: datetime
    tried_at: datetime | None


async def list_admissions(database: Database, game: str, limit: int = 20) -> list[AdmissionRow]:
    """The latest first."""
    rows = await database.pool.fetch(
        "SELECT a.admission_id, a.agent_id, a.outcome, a.asked_by, a.asked_at, a.tried_at,"
        " (SELECT count(*) FROM hindsight.admission_lessons m WHERE m.admission_id = a.admission_id) AS lessons,"
        " (SELECT count(*) FROM hindsight.admission_lessons m JOIN hindsight.lessons l USING (lesson_id)"
        "   WHERE m.admission_id = a.admission_id AND l.gated_at IS NOT NULL AND l.retired_at IS NULL) AS shown,"
        " CASE WHEN a.is_wanted THEN 'waiting' ELSE coalesce(r.ruling, 'tried') END AS state"
        f" FROM hindsight.lesson_admissions a LEFT JOIN LATERAL ({_RULING}) r ON true"
        " WHERE a.game = $1 ORDER BY a.asked_at DESC, a.admission_id LIMIT $2",
        *(game, limit),
    )
    return [AdmissionRow(**row) for row in rows]
