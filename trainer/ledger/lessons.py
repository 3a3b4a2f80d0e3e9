"""Lessons in the ledger: stored once by what they say, with their sources; retired, gated, purged.

Whoever changes whether or how a lesson is shown also sets ``changed_in``, so that an index in memory hears of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.ledger.batch_records import GroupRecord, decode_groups
from trainer.lesson import Lesson, LessonKind, LessonSource, NewLesson, Scope, Trust

if TYPE_CHECKING:
    from trainer.lesson import Vectors

_INSERT = """
INSERT INTO hindsight.lessons (lesson_id, kind, game, role, agent_id, title, content, stance, importance, trust,
                               known_at, about, embedder, embedding)
SELECT n.lesson_id, n.kind, n.game, n.role, n.agent_id, n.title, n.content, n.stance, n.importance, n.trust,
       n.known_at, n.about, $14, n.vector::{type}
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[],
              $9::float8[], $10::text[], $11::timestamptz[], $12::text[], $13::text[])
       AS n(lesson_id, kind, game, role, agent_id, title, content, stance, importance, trust, known_at, about, vector)
 ORDER BY n.lesson_id
    ON CONFLICT (lesson_id) DO NOTHING
RETURNING lesson_id
"""
_SOURCES = """
INSERT INTO hindsight.lesson_sources (lesson_id, trajectory_id, agent_id, window_id, verdict_key, agrees, known_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bool[], $7::timestamptz[])
    ON CONFLICT (lesson_id, trajectory_id) DO NOTHING
"""
# The same episode from an earlier hour was known from that hour on; a rule or a procedure rests on all of its sources.
_COUNT = """
UPDATE hindsight.lessons l
   SET support = greatest(1, s.agree), contradictions = s.against,
       known_at = CASE WHEN l.kind = 'episodic' THEN least(l.known_at, s.first) ELSE l.known_at END,
       changed_in = CASE WHEN s.first < l.known_at THEN pg_current_xact_id() ELSE l.changed_in END
  FROM (SELECT lesson_id, count(*) FILTER (WHERE agrees) AS agree, count(*) FILTER (WHERE NOT agrees) AS against,
               min(known_at) FILTER (WHERE agrees) AS first
          FROM hindsight.lesson_sources WHERE lesson_id = ANY($1) GROUP BY lesson_id) s
 WHERE l.lesson_id = s.lesson_id AND l.kind <> 'semantic'
   AND (l.support, l.contradictions) IS DISTINCT FROM (greatest(1, s.agree), s.against)
"""
COLUMNS = """l.lesson_id, l.kind, l.game, l.role, l.agent_id, l.title, l.content, l.about, l.stance, l.importance,
       l.support, l.contradictions, l.uses, l.last_used_at, l.usefulness, l.scored_uses, l.trust, l.known_at, l.made_at,
       l.gated_at, l.retired_at, l.retired_because"""


@dataclass(frozen=True, slots=True)
class StoredLesson:
    """``is_new``: False if the same lesson was there before."""

    lesson_id: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class VectorType:
    """How this database holds embeddings: pgvector's type, qualified, or ``real[]``."""

    sql: str

    @property
    def has_pgvector(self) -> bool:
        return self.sql != "real[]"

    @property
    def schema(self) -> str:
        """Where pgvector's functions and operators are, quoted."""
        return self.sql.rpartition(".")[0]

    def written(self, vector: Vectors) -> str:
        numbers = ",".join(f"{number:.7g}" for number in vector)
        return f"[{numbers}]" if self.has_pgvector else f"{{{numbers}}}"


async def vector_type(source: Any) -> VectorType:
    found = await source.fetchval(
        "SELECT CASE WHEN t.typname = 'vector' THEN quote_ident(n.nspname) || '.vector' ELSE 'real[]' END"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace"
        " WHERE a.attrelid = 'hindsight.lessons'::regclass AND a.attname = 'embedding'"
    )
    return VectorType(str(found))


async def store_lessons(
    source: Any, kind: VectorType, lessons: Sequence[NewLesson], vectors: Vectors | None, embedder: str | None
) -> list[StoredLesson]:
    """Store lessons and their sources in the caller's transaction; one that is there only gets further sources.

    Without vectors they are embedded by whoever searches first.
    """
    ids = [one.lesson_id for one in lessons]
    unique = {name: place for place, name in reversed(list(enumerate(ids)))}
    rows = [lessons[place] for place in unique.values()]
    inserted = await source.fetch(
        _INSERT.format(type=kind.sql),
        list(unique),
        [one.kind.value for one in rows],
        [one.scope.game for one in rows],
        [one.scope.role for one in rows],
        [one.scope.agent_id for one in rows],
        [one.title for one in rows],
        [one.content for one in rows],
        [one.stance for one in rows],
        [one.importance for one in rows],
        [one.trust.value for one in rows],
        [one.known_at for one in rows],
        [one.about for one in rows],
        [None if vectors is None else kind.written(vectors[place]) for place in unique.values()],
        embedder,
    )
    await add_sources(
        source, [(name, one) for name, lesson in zip(ids, lessons, strict=True) for one in lesson.sources]
    )
    new = {row["lesson_id"] for row in inserted}
    stored = []
    for name in ids:
        stored.append(StoredLesson(name, name in new))
        new.discard(name)
    return stored


async def add_sources(source: Any, pairs: Sequence[tuple[str, LessonSource]]) -> None:
    if not pairs:
        return
    # One after the other: a transaction that counts must see what the one before it added.
    names = sorted({name for name, _ in pairs})
    await source.execute(
        "SELECT FROM hindsight.lessons WHERE lesson_id = ANY($1) ORDER BY lesson_id FOR NO KEY UPDATE", names
    )
    await source.execute(
        _SOURCES,
        [name for name, _ in pairs],
        [one.trajectory_id for _, one in pairs],
        [one.agent_id for _, one in pairs],
        [one.window_id for _, one in pairs],
        [one.verdict_key for _, one in pairs],
        [one.agrees for _, one in pairs],
        [one.known_at for _, one in pairs],
    )
    await source.execute(_COUNT, names)


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """A judged group of a trained batch that nothing was distilled from yet."""

    group: GroupRecord
    run_id: str
    hours: int


async def undistilled(source: Any, game: str, model: str, run_id: str | None = None) -> list[JudgedRecord]:
    """The trained groups of ``model`` (of one run) whose verdicts were not distilled for ``game``, oldest first."""
    rows = await source.fetch(
        "SELECT b.run_id, b.groups::text FROM hindsight.batches b WHERE b.model = $1 AND b.state = 'trained'"
        " AND ($2::text IS NULL OR b.run_id = $2) ORDER BY b.step",
        *(model, run_id),
    )
    known = await source.fetch("SELECT verdict_key FROM hindsight.distilled WHERE game = $1", game)
    done = {row["verdict_key"] for row in known}
    hours = {
        row["window_id"]: row["hours"]
        for row in await source.fetch("SELECT window_id, max(hours) AS hours FROM hindsight.windows GROUP BY 1")
    }
    found: dict[str, JudgedRecord] = {}
    for row in rows:
        for group in decode_groups(row["groups"]):
            if group.verdict_key not in done:
                found.setdefault(group.verdict_key, JudgedRecord(group, row["run_id"], hours.get(group.window_id, 1)))
    return sorted(found.values(), key=lambda one: (one.group.window_id, one.group.group_id))


@dataclass(frozen=True, slots=True)
class UnembeddedLesson:
    lesson_id: str
    title: str
    content: str

    @property
    def text(self) -> str:
        return f"{self.title}. {self.content}"


async def unembedded(
    source: Any, game: str | None, most: int, *, other_than: str | None = None
) -> list[UnembeddedLesson]:
    """Lessons without a vector; with ``other_than`` also those embedded by another model than this one."""
    rows = await source.fetch(
        "SELECT lesson_id, title, content FROM hindsight.lessons WHERE retired_at IS NULL"
        " AND ($1::text IS NULL OR game = $1) AND (embedder IS NULL OR embedder <> $3) ORDER BY lesson_id LIMIT $2",
        *(game, most, other_than),
    )
    return [UnembeddedLesson(**row) for row in rows]


async def set_vectors(
    source: Any, kind: VectorType, lesson_ids: Sequence[str], vectors: Vectors, embedder: str
) -> None:
    await source.execute(
        f"UPDATE hindsight.lessons l SET embedding = n.vector::{kind.sql}, embedder = $3,"
        " changed_in = pg_current_xact_id() FROM unnest($1::text[], $2::text[]) AS n(lesson_id, vector)"
        " WHERE l.lesson_id = n.lesson_id",
        *(list(lesson_ids), [kind.written(vector) for vector in vectors], embedder),
    )


async def keep_distilled(
    database: Database,
    kind: VectorType,
    lessons: Sequence[NewLesson],
    *,
    verdict_key: str,
    game: str,
    method: str,
    run_id: str | None,
    window_id: str,
) -> int | None:
    """The lessons of one verdict, once, all or none; None if they were kept before, or their window waits for a
    ruling."""
    async with database.pool.acquire() as connection, connection.transaction():
        if await unruled_windows(connection, [window_id]):
            return None
        first = await connection.fetchval(
            "INSERT INTO hindsight.distilled (verdict_key, game, method, run_id, lessons) VALUES ($1, $2, $3, $4, $5)"
            " ON CONFLICT DO NOTHING RETURNING true",
            *(verdict_key, game, method, run_id, len(lessons)),
        )
        if not first:
            return None
        stored = await store_lessons(connection, kind, lessons, None, None) if lessons else []
    return sum(one.is_new for one in stored)


async def keep_procedures(database: Database, kind: VectorType, lessons: Sequence[NewLesson]) -> int:
    """Lessons about error patterns, without those that rest on a window that waits for a ruling; returns the new."""
    async with database.pool.acquire() as connection, connection.transaction():
        windows = {one.window_id for lesson in lessons for one in lesson.sources}
        held = await unruled_windows(connection, sorted(windows))
        kept = [one for one in lessons if not any(source.window_id in held for source in one.sources)]
        stored = await store_lessons(connection, kind, kept, None, None) if kept else []
    return sum(one.is_new for one in stored)


async def windows_of(source: Any, run_id: str) -> dict[str, int]:
    """The hours of each window that a run planned."""
    rows = await source.fetch("SELECT window_id, hours FROM hindsight.windows WHERE run_id = $1", run_id)
    return {row["window_id"]: row["hours"] for row in rows}


async def is_distilled(source: Any, verdict_key: str, game: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM hindsight.distilled WHERE verdict_key = $1 AND game = $2)"
    return bool(await source.fetchval(query, verdict_key, game))


async def retire_lesson(database: Database, lesson_id: str, reason: str) -> bool:
    """False if there is no such lesson, or it is retired already. ConfigurationError without a reason."""
    if not reason.strip():
        raise ConfigurationError("Say why the lesson is retired: the reason is kept with it.")
    status = await database.pool.execute(
        "UPDATE hindsight.lessons SET retired_at = now(), retired_because = $2, changed_in = pg_current_xact_id()"
        " WHERE lesson_id = $1 AND retired_at IS NULL",
        *(lesson_id, reason.strip()[:500]),
    )
    return bool(status == "UPDATE 1")


async def forget_lessons(connection: Any, agent_id: str) -> int:
    """Delete an agent's own lessons, those that rest on its trajectories alone, and what it was shown.

    A rule that others' episodes also support loses this agent's; one whose words are this agent's goes with it.
    """
    touched = await connection.fetch(
        "SELECT DISTINCT lesson_id FROM hindsight.lesson_sources WHERE agent_id = $1", agent_id
    )
    names = [row["lesson_id"] for row in touched]
    await connection.execute("DELETE FROM hindsight.injections WHERE agent_id = $1", agent_id)
    await connection.execute("DELETE FROM hindsight.lesson_admissions WHERE agent_id = $1", agent_id)
    await connection.execute("DELETE FROM hindsight.lesson_sources WHERE agent_id = $1", agent_id)
    deleted = await connection.fetch(
        "DELETE FROM hindsight.lessons l WHERE l.agent_id = $1 OR (l.lesson_id = ANY($2)"
        " AND NOT EXISTS (SELECT FROM hindsight.lesson_sources s WHERE s.lesson_id = l.lesson_id AND s.agrees))"
        " RETURNING content",
        *(agent_id, names),
    )
    rules = await connection.execute(
        "DELETE FROM hindsight.lessons WHERE kind = 'semantic' AND lesson_id = ANY($1) AND content = ANY($2)",
        *(names, [row["content"] for row in deleted]),
    )
    await connection.execute(
        "UPDATE hindsight.lessons l SET support = greatest(1, s.agree), contradictions = s.against FROM (SELECT"
        " lesson_id, count(*) FILTER (WHERE agrees) AS agree, count(*) FILTER (WHERE NOT agrees) AS against"
        " FROM hindsight.lesson_sources WHERE lesson_id = ANY($1) GROUP BY lesson_id) s"
        " WHERE l.lesson_id = s.lesson_id",
        names,
    )
    return len(deleted) + int(rules.rpartition(" ")[2])


async def gate_lessons(source: Any, lesson_ids: Sequence[str]) -> int:
    """Lessons from outside that passed the gate: agents may be shown them from now on."""
    status = await source.execute(
        "UPDATE hindsight.lessons SET gated_at = now(), changed_in = pg_current_xact_id()"
        " WHERE lesson_id = ANY($1) AND gated_at IS NULL AND trust = 'api'",
        list(lesson_ids),
    )
    return int(status.rpartition(" ")[2])


def lesson_of(row: Any, sources: Sequence[LessonSource] = ()) -> Lesson:
    """A row with ``COLUMNS``."""
    return Lesson(
        lesson_id=row["lesson_id"],
        kind=LessonKind(row["kind"]),
        scope=Scope(row["game"], row["role"], row["agent_id"]),
        title=row["title"],
        content=row["content"],
        about=row["about"],
        stance=row["stance"],
        importance=row["importance"],
        support=row["support"],
        contradictions=row["contradictions"],
        uses=row["uses"],
        last_used_at=row["last_used_at"],
        usefulness=row["usefulness"],
        scored_uses=row["scored_uses"],
        trust=Trust(row["trust"]),
        known_at=row["known_at"],
        made_at=row["made_at"],
        gated_at=row["gated_at"],
        retired_at=row["retired_at"],
        retired_because=row["retired_because"],
        sources=tuple(sources),
    )


async def sources_of(source: Any, lesson_ids: Sequence[str], most: int = 20) -> dict[str, list[LessonSource]]:
    """The newest sources of each lesson, at most ``most``."""
    rows = await source.fetch(
        "SELECT * FROM (SELECT s.*, row_number() OVER (PARTITION BY lesson_id ORDER BY window_id DESC, trajectory_id)"
        " AS place FROM hindsight.lesson_sources s WHERE lesson_id = ANY($1)) ranked WHERE place <= $2"
        " ORDER BY lesson_id, place",
        *(list(lesson_ids), most),
    )
    found: dict[str, list[LessonSource]] = {name: [] for name in lesson_ids}
    for row in rows:
        found[row["lesson_id"]].append(
            LessonSource(
                row["trajectory_id"],
                row["agent_id"],
                row["window_id"],
                row["known_at"],
                row["verdict_key"],
                row["agrees"],
            )
        )
    return found


async def unruled_windows(source: Any, window_ids: Sequence[str]) -> set[str]:
    """Which of these windows an evaluation has consulted without a ruling yet."""
    rows = await source.fetch(
        "SELECT window_id FROM hindsight.unruled_windows WHERE window_id = ANY($1)", list(window_ids)
    )
    return {row["window_id"] for row in rows}


async def now_of_database(source: Any) -> datetime:
    moment: datetime = await source.fetchval("SELECT now()")
    return moment
