"""Facts about windows: written to ``hindsight.window_facts`` by the game's owner, read from there or from a view.

A fact may be written any number of times: a later call of the same source corrects it, a value that it does not know
keeps its old one. What two sources tell differently counts for neither, until one of them is corrected. A row that
cannot be read costs itself. Reading is total: whatever a view holds, every row becomes a fact or a count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.models import Fact, FactDoubts
from data_bridge.window_ids import GRACE, end_of, in_utc, normalise

FACT_COLUMNS = (
    *("window_id", "subject", "kind", "source", "value_before", "value_after", "text", "happened_at", "visible"),
    "written_at",
)
"""Of ``hindsight.window_facts``; a view must have the first three, and may have the others."""

TABLE = "hindsight.window_facts"
MAX_FACTS = 20_000
"""Facts that are read of one window; the first by subject and kind."""

_MAX_SUBJECT, _MAX_KIND, _MAX_TEXT, _MAX_NUMBER = 200, 60, 2_000, 1e15
_AHEAD = timedelta(minutes=1)
"""How far the game's clock may be ahead of ours."""
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_WRITE = f"""
INSERT INTO {TABLE} AS old (window_id, subject, kind, source, value_before, value_after, text, happened_at, visible)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (window_id, subject, kind, source) DO UPDATE SET
    value_before = COALESCE(EXCLUDED.value_before, old.value_before),
    value_after = COALESCE(EXCLUDED.value_after, old.value_after),
    text = COALESCE(EXCLUDED.text, old.text),
    happened_at = COALESCE(EXCLUDED.happened_at, old.happened_at),
    visible = EXCLUDED.visible, written_at = now(), corrections = old.corrections + 1
WHERE (old.value_before, old.value_after, old.text, old.happened_at, old.visible) IS DISTINCT FROM
    (COALESCE(EXCLUDED.value_before, old.value_before), COALESCE(EXCLUDED.value_after, old.value_after),
     COALESCE(EXCLUDED.text, old.text), COALESCE(EXCLUDED.happened_at, old.happened_at), EXCLUDED.visible)
"""


def facts_query(view: str | None) -> str:
    """The query for the facts of the windows $1, as JSON: from our table, or from the team's view.

    ConfigurationError unless ``view`` is a plain name, with a schema or without: it becomes part of the SQL.
    """
    if view is None:
        return f"SELECT window_id, to_jsonb(f)::text AS fact FROM {TABLE} f WHERE window_id = ANY($1)"
    parts = view.split(".")
    if len(parts) > 2 or not all(_IDENTIFIER.fullmatch(part) for part in parts):
        raise ConfigurationError(
            f"--facts-view: {view[:100]!r} is not the name of a view: write name or schema.name in lower-case letters, "
            "digits and underscores."
        )
    name = ".".join(f'"{part}"' for part in parts)
    return f"SELECT f.window_id::text AS window_id, to_jsonb(f)::text AS fact FROM {name} f WHERE f.window_id = ANY($1)"


async def record_facts(
    database: Database,
    window_id: str,
    facts: Sequence[Fact],
    *,
    source: str = "game",
    hours: int = 1,
    now: datetime | None = None,
) -> int:
    """Write facts about ``window_id``; returns how many were added or changed (0 for a repetition).

    ConfigurationError if the id is not valid, if the window has not ended (only what agents can see is known before),
    for a fact that no row can hold, or for one that is still to come.
    """
    canonical = normalise(window_id)
    if canonical is None:
        raise ConfigurationError(f"{window_id!r} is not a window id: write YYYY-MM-DDTHH:00.")
    now = now or datetime.now(UTC)
    if end_of(canonical, hours) > now and not all(fact.visible for fact in facts):
        raise ConfigurationError(f"Window {canonical} has not ended yet: its facts are not known.")
    for fact in facts:
        _refuse_unstorable(fact, source)
        if fact.at is not None and in_utc(fact.at) > now + _AHEAD:
            raise ConfigurationError(
                f"{fact.kind!r} about {fact.subject!r} happens at {fact.at}, which is still to come."
            )
    if not facts:
        return 0
    rows = [
        (canonical, f.subject, f.kind, source, f.before, f.after, f.text, f.at and in_utc(f.at), f.visible)
        for f in sorted(facts, key=lambda one: (one.subject, one.kind))  # one order of locks for all writers
    ]
    written = 0
    try:
        async with database.pool.acquire() as connection, connection.transaction():
            for row in rows:
                written += int((await connection.execute(_WRITE, *row)).rpartition(" ")[2])
    except asyncpg.UndefinedTableError as error:
        raise ConfigurationError(f"There is no table {TABLE}: run scripts/run_migrations.py once.") from error
    return written


def _refuse_unstorable(fact: Fact, source: str) -> None:
    texts = (("subject", fact.subject, _MAX_SUBJECT), ("kind", fact.kind, _MAX_KIND), ("source", source, _MAX_KIND))
    for name, text, most in texts:
        if not 1 <= len(text) <= most or "\x00" in text:
            raise ConfigurationError(
                f"A fact's {name} must have 1 to {most} characters, none of them NUL: {text[:80]!r}."
            )
    if fact.text is not None and (len(fact.text) > _MAX_TEXT or "\x00" in fact.text):
        raise ConfigurationError(
            f"The text of {fact.kind!r} about {fact.subject!r} is longer than {_MAX_TEXT}, or has NUL."
        )
    if fact.at is not None and fact.at.tzinfo is None:
        raise ConfigurationError(f"The time of {fact.kind!r} about {fact.subject!r} names no zone: {fact.at}.")
    if any(value is not None and _number(value) is None for value in (fact.before, fact.after)):
        raise ConfigurationError(f"The value of {fact.kind!r} about {fact.subject!r} is not a finite number.")


def names_in(subject: object) -> list[str]:
    """Every beginning of a fact's subject that may be the id of an agent, the longest first."""
    text = _text(subject, _MAX_SUBJECT)
    if text is None:
        return []
    parts = text.split("/")
    return ["/".join(parts[:number]) for number in range(len(parts), 0, -1)]


def facts_of(
    rows: Iterable[Mapping[str, Any]], closed_at: datetime, agents: Collection[str] = ()
) -> tuple[tuple[Fact, ...], FactDoubts]:
    """The facts of one window and what is to be said against the others. Never raises, whatever the rows hold.

    ``agents`` are the ids among ``names_in`` the subjects that are agents': what is told of one of them is nobody
    else's, whatever subject another one's row names.
    """
    told: dict[tuple[str, str], list[tuple[Fact, bool]]] = defaultdict(list)
    malformed = 0
    for row in rows:
        fact = _fact(row, agents)
        if fact is None:
            malformed += 1
        else:
            written = _moment(row.get("written_at"))
            told[fact.subject, fact.kind].append((fact, written is not None and written > closed_at))
    facts: list[Fact] = []
    unknown = contradictory = late = 0
    for _, own in sorted(told.items()):
        known = [(fact, is_late) for fact, is_late in own if fact.is_known]
        if not known:
            unknown += 1
        elif len({(fact.before, fact.after, fact.text, fact.visible) for fact, _ in known}) > 1:
            contradictory += 1
        else:
            facts.append(min((fact for fact, _ in known), key=lambda fact: (fact.at is None, fact.at or closed_at)))
            late += all(is_late for _, is_late in known)
    too_many = max(0, len(facts) - MAX_FACTS)
    return tuple(facts[:MAX_FACTS]), FactDoubts(unknown, contradictory, late, malformed, too_many)


def closing_of(window_id: str, hours: int) -> datetime:
    """After this moment a fact is late."""
    return end_of(window_id, hours) + GRACE


def _fact(row: Mapping[str, Any], agents: Collection[str]) -> Fact | None:
    subject, kind = _text(row.get("subject"), _MAX_SUBJECT), _text(row.get("kind"), _MAX_KIND)
    if subject is None or kind is None:
        return None
    text = row.get("text")
    return Fact(
        subject,
        kind,
        _number(row.get("value_before")),
        _number(row.get("value_after")),
        text.strip()[:_MAX_TEXT] or None if isinstance(text, str) else None,
        _moment(row.get("happened_at")),
        row.get("visible") is True,
        next((name for name in names_in(subject) if name in agents), None),
    )


def _text(value: object, most: int) -> str | None:
    """A name; a whole number is one, too: many tables have numbers for ids."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**18 else None
    return value.strip() if isinstance(value, str) and 1 <= len(value.strip()) <= most else None


def _number(value: object) -> float | None:
    """Yes and no are 1 and 0. NaN is within no limit, and an integer that no float can hold is beyond this one."""
    return float(value) if isinstance(value, int | float) and abs(value) <= _MAX_NUMBER else None


def _moment(value: object) -> datetime | None:
    """An aware moment; what names no zone is UTC."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            return None
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
