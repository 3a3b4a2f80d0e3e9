"""Traces: trajectories with the outcomes of their windows as JSON lines, out of a database and into one.

A line is ``{"trajectory": {column: value}, "agent": {…}, "outcomes": [{column: value}]}``. Columns go out and come
in as Postgres itself writes and reads them, texts as they are, so that export → import → export is the identity,
dirt included, whatever columns the game has added. Import skips what is there already.

Lines written by hand may leave out every column that has an obvious value, and may give JSON columns as JSON.
"""

from __future__ import annotations

import gzip
import os
import sys
import uuid
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import asyncpg
import msgspec

from data_bridge.database import Database
from data_bridge.decode import Undecodable, check_amount
from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.migrate import owns_game_tables
from data_bridge.window_ids import in_utc, window_of

if TYPE_CHECKING:
    from data_bridge.migrate import Connection

Progress = Callable[[int], None]
"""Told how many trajectories have passed so far."""

STANDARD = Path("-")
"""Standard output, or input."""

_FETCH_ROWS = 50
_BATCH_ROWS, _BATCH_BYTES = 200, 8 * 2**20
_LONGEST_LINE = 32 * 2**20
"""Bytes, unpacked: an archive of a few can hold a line of gigabytes."""
_MOST_CONTAINERS, _MOST_VALUES = 200_000, 500_000  # of a line, with the outcomes of its window

_NAMES_AN_HOUR = (  # as window_ids.normalise understands it
    r"^\s*[12]\d\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]([01]\d|2[0-3])"
    r":\d\d(:\d\d(\.\d+)?)?(Z|[+-]00:?00)?\s*$"
)
# The canonical id of a row's window: of the hour it started in, if its own id is NULL or names no hour.
_WINDOW = f"""
CASE WHEN t."windowId" ~ '{_NAMES_AN_HOUR}' THEN replace(left(ltrim(t."windowId"), 13), ' ', 'T') || ':00'
     ELSE to_char(t."startTime", 'YYYY-MM-DD"T"HH24":00"') END
"""
_SELECT = """
DECLARE traces NO SCROLL CURSOR FOR
SELECT row_to_json(t)::text AS trajectory, {window} AS window, {agent} AS agent
FROM "trajectories" t {join}
WHERE ({near}) AND {window} >= '{first}' AND {window} < '{end}'
ORDER BY t."windowId" NULLS LAST, t."agentId", t."trajectoryId"
"""
# What the index on the id can answer: a day's name sorts before all of its hours in every spelling, and an id that
# names no hour sorts before every year or after the days, as in ``reader``.
_NEAR = """
(t."windowId" >= '{first_day}' AND t."windowId" < '{day_after}')
OR ((t."windowId" IS NULL OR t."windowId" < '1970' OR t."windowId" >= '{day_after}')
    AND t."startTime" >= '{first}' AND t."startTime" < '{end}')
"""
_NAMES = """json_build_object('id', u."id", 'username', u."username", 'displayName', u."displayName")::text"""
_OUTCOMES = """
SELECT row_to_json(o)::text FROM "market_outcomes" o WHERE "windowId" LIKE $1 OR "windowId" LIKE $2
ORDER BY "windowId", "stockTicker", "predictionMarketId", "id"
"""
_INSERT = """
INSERT INTO "{table}" SELECT * FROM json_populate_recordset(NULL::"{table}", $1::json) ON CONFLICT DO NOTHING
"""
_INSERT_AGENTS = """
INSERT INTO "User" ("id", "username", "displayName")
SELECT DISTINCT ON (id) id, username, "displayName"
FROM json_to_recordset($1::json) AS agents(id text, username text, "displayName" text)
ON CONFLICT DO NOTHING
"""


_FACTS = """
SELECT row_to_json(f)::text FROM hindsight.window_facts f WHERE window_id = $1 ORDER BY subject, kind, source
"""
_MAY_READ_FACTS = """
SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = 'hindsight' AND c.relname = 'window_facts'
    AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))
"""
_INSERT_FACTS = """
INSERT INTO hindsight.window_facts
    (window_id, subject, kind, source, value_before, value_after, text, happened_at, visible, first_written, written_at)
SELECT window_id, subject, kind, COALESCE(source, 'game'), value_before, value_after, text, happened_at,
       COALESCE(visible, false), COALESCE(first_written, now()), COALESCE(written_at, now())
FROM json_populate_recordset(NULL::hindsight.window_facts, $1::json) ON CONFLICT DO NOTHING
"""


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_OBVIOUS = {
    name: _raw(value)
    for name, value in {
        "durationMs": 0,
        "windowHours": 1,
        "rewardComponentsJson": "{}",
        "metricsJson": "{}",
        "metadataJson": "{}",
        "totalReward": 0,
        "episodeLength": 0,
        "finalStatus": "completed",
        "isTrainingData": True,
        "isEvaluation": False,
        "usedInTraining": False,
    }.items()
}
_NEEDED = ("trajectoryId", "agentId", "startTime", "stepsJson")
_TIMES = ("startTime", "endTime", "createdAt", "updatedAt", "judgedAt")
_JSON_COLUMNS = ("stepsJson", "rewardComponentsJson", "metricsJson", "metadataJson")
_NULL = msgspec.Raw(b"null")
_UNTRAINED = {
    "usedInTraining": msgspec.Raw(b"false"),
    **dict.fromkeys(("trainedInBatch", "aiJudgeReward", "aiJudgeReasoning", "judgedAt"), _NULL),
}

Columns = dict[str, msgspec.Raw]
"""By column name, the value as JSON that is handed on untouched: not even a trailing zero is lost."""


class _Trace(msgspec.Struct, frozen=True):
    """A line as it is written, or with every column that its rows must have."""

    trajectory: Columns
    agent: Columns | None = None
    outcomes: list[Columns] = []
    facts: list[Columns] = []


_Numbered = tuple[int, _Trace]
"""A line of the file with its number."""


@dataclass(frozen=True, slots=True)
class Passed:
    """What went through: ``new`` rows of an import were not in the database before."""

    trajectories: int
    outcomes: int
    windows: int
    new: int = 0


async def export_traces(
    database: Database, path: Path, *, first: datetime, end: datetime, progress: Progress = lambda _: None
) -> Passed:
    """Write the trajectories of the windows that start in [first, end), as one snapshot; gzip if the name says so.

    NotEnoughData if there are none. The file appears only when it is complete.
    """
    trajectories, outcomes, windows = 0, 0, set[str]()
    # The lines are closed before the connection is given back, also when one cannot be written.
    async with database.pool.acquire() as connection, aclosing(_lines(connection, first, end)) as lines:
        with written(path) as write:
            async for line, window, number in lines:
                write(line)
                trajectories += 1
                outcomes += number if window not in windows else 0
                windows.add(window)
                progress(trajectories)
            if trajectories == 0:
                raise NotEnoughData(f"There are no trajectories from {window_of(first)} to {window_of(end)}.")
    return Passed(trajectories, outcomes, len(windows))


async def import_traces(
    database: Database, path: Path, *, untrained: bool = False, progress: Progress = lambda _: None
) -> Passed:
    """Add what ``path`` holds and the database does not. ``untrained`` forgets that rows were judged and trained on.

    ConfigurationError names the line that is no trace; the batches before it are in the database by then.
    """
    trajectories, new, outcomes, windows = 0, 0, set[bytes](), set[bytes]()
    async with database.pool.acquire() as connection:
        is_ours = await owns_game_tables(connection)
        for batch in _batches(path, untrained):
            new += await _import(connection, path, batch, add_agents=is_ours)
            trajectories += len(batch)
            outcomes |= {bytes(outcome["id"]) for _, trace in batch for outcome in trace.outcomes}
            outcomes |= {msgspec.json.encode(fact) for _, trace in batch for fact in trace.facts}
            windows |= {bytes(trace.trajectory.get("windowId", _NULL)) for _, trace in batch}
            progress(trajectories)
    return Passed(trajectories, len(outcomes), len(windows), new)


async def _import(connection: Connection, path: Path, batch: Sequence[_Numbered], *, add_agents: bool) -> int:
    """Insert a batch in one transaction; how many trajectories are new. One that is refused is halved to the line."""
    rows = [trace.trajectory for _, trace in batch]
    outcomes = {bytes(outcome["id"]): outcome for _, trace in batch for outcome in trace.outcomes}
    try:
        async with connection.transaction():
            if add_agents:
                agents = [{**(trace.agent or {}), "id": trace.trajectory["agentId"]} for _, trace in batch]
                await connection.execute(_INSERT_AGENTS, msgspec.json.encode(agents).decode())
            new = await _insert(connection, "trajectories", rows)
            await _insert(connection, "market_outcomes", list(outcomes.values()))
            facts = [fact for _, trace in batch for fact in trace.facts]
            if facts:
                await connection.execute(_INSERT_FACTS, msgspec.json.encode(facts).decode())
            return new
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        if len(batch) == 1:
            said = str(error).splitlines()[0]
            raise ConfigurationError(f"{path}, line {batch[0][0]} holds what no column takes: {said}.") from error
    middle = len(batch) // 2
    halves = (batch[:middle], batch[middle:])
    return sum([await _import(connection, path, half, add_agents=add_agents) for half in halves])


async def _lines(
    connection: Connection, first: datetime, end: datetime
) -> AsyncGenerator[tuple[bytes, str, int], None]:
    """Each trajectory as a line, its window, and the number of its outcomes; one snapshot of the database."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        may_name = await connection.fetchval("""SELECT has_table_privilege('"User"', 'SELECT')""")
        join = 'LEFT JOIN "User" u ON u."id" = t."agentId"' if may_name else ""
        agent = _NAMES if may_name else "NULL"
        await connection.execute(_select(first, end, agent, join))
        has_facts = await connection.fetchval(_MAY_READ_FACTS)
        window, outcomes, facts = "", list[str](), list[str]()
        while rows := await connection.fetch(f"FETCH {_FETCH_ROWS} FROM traces"):
            for row in rows:
                if row["window"] != window:
                    window, outcomes = row["window"], await _outcomes_of(connection, row["window"])
                    facts = [one[0] for one in await connection.fetch(_FACTS, window)] if has_facts else []
                fields = (row["trajectory"], row["agent"] or "null", ",".join(outcomes), _facts_json(facts))
                line = '{{"trajectory":{},"agent":{},"outcomes":[{}]{}}}\n'.format(*fields)
                yield line.encode(), window, len(outcomes) + len(facts)


def _select(first: datetime, end: datetime, agent: str, join: str) -> str:
    within = {"first": window_of(first), "end": window_of(end)}
    near = _NEAR.format(
        **within, first_day=within["first"][:10], day_after=f"{in_utc(end) + timedelta(days=1):%Y-%m-%d}"
    )
    return _SELECT.format(**within, near=near, window=_WINDOW, agent=agent, join=join)


def _facts_json(facts: Sequence[str]) -> str:
    """A window without facts has the same line as before there were any."""
    return f',"facts":[{",".join(facts)}]' if facts else ""


async def _outcomes_of(connection: Connection, window: str) -> list[str]:
    hour = window[:13]  # every spelling of the id begins with it
    rows = await connection.fetch(_OUTCOMES, f"{hour}:%", f"{hour.replace('T', ' ')}:%")
    return [row[0] for row in rows]


@contextmanager
def written(path: Path) -> Iterator[Callable[[bytes], object]]:
    """What writes to a file that takes its name when it is complete.

    Equal content gives equal bytes, gzip's header included. Only faults of the file are told as such: the block waits
    for a database, too. ``-`` is standard output.
    """
    if path == STANDARD:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _told_as_unwritable(path):
            raw = temporary.open("wb")
        is_packed = path.suffix == ".gz"
        file = gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) if is_packed else raw

        def write(line: bytes) -> None:
            with _told_as_unwritable(path):
                file.write(line)

        try:
            yield write
            with _told_as_unwritable(path):
                file.close()
                raw.close()
                temporary.replace(path)
        finally:
            with suppress(OSError):  # it may hold what did not fit on the disk
                raw.close()
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _told_as_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({error.strerror}): choose another file.") from error


def _opened(path: Path) -> AbstractContextManager[BinaryIO | gzip.GzipFile]:
    if path == STANDARD:
        return nullcontext(sys.stdin.buffer)
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _batches(path: Path, untrained: bool) -> Iterator[list[_Numbered]]:
    """The lines of ``path``, in batches that bound the memory."""
    decoder = msgspec.json.Decoder(_Trace)
    batch, size = list[_Numbered](), 0
    try:
        with _opened(path) as file:
            for number, text in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
                if len(text) > _LONGEST_LINE:
                    raise ConfigurationError(
                        f"{path}, line {number} is longer than {_LONGEST_LINE // 2**20} MB: it is not a trace."
                    )
                if not text.strip():
                    continue
                try:
                    check_amount(text, _MOST_CONTAINERS, _MOST_VALUES)
                    text.decode()  # what a Raw holds is not looked at by the decoder
                    trace = decoder.decode(text)
                except (msgspec.MsgspecError, UnicodeDecodeError, Undecodable) as error:
                    raise ConfigurationError(f"{path}, line {number} is not a trace: {error}.") from error
                except RecursionError as error:
                    raise ConfigurationError(f"{path}, line {number} is not a trace: nested too deeply.") from error
                row = _row(trace.trajectory, number, path, untrained)
                outcomes = [_outcome(given) for given in trace.outcomes]
                batch.append((number, _Trace(row, trace.agent, outcomes, trace.facts)))
                size += len(text)
                if len(batch) == _BATCH_ROWS or size > _BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}).") from error
    if batch:
        yield batch


def _row(given: Columns, number: int, path: Path, untrained: bool) -> Columns:
    for name in _NEEDED:
        if given.get(name, _NULL) == _NULL:
            raise ConfigurationError(f"{path}, line {number} has no {name}: it is not a trajectory.")
    start = given["startTime"]
    times = {"endTime": start, "createdAt": start, "updatedAt": start}
    row = {"id": given["trajectoryId"], **times, **_OBVIOUS, **given, **(_UNTRAINED if untrained else {})}
    for name in _JSON_COLUMNS:
        if not bytes(row[name]).startswith(b'"'):
            row[name] = _raw(bytes(row[name]).decode())
    return _with_times_in_utc(row)


def _with_times_in_utc(row: Columns) -> Columns:
    """A time that names its zone as UTC: the columns have none, so Postgres would drop the zone without a word."""
    return {name: _in_utc(value) if name in _TIMES else value for name, value in row.items()}


def _in_utc(value: msgspec.Raw) -> msgspec.Raw:
    try:
        moment = datetime.fromisoformat(msgspec.json.decode(value, type=str))
        return value if moment.tzinfo is None else _raw(moment.astimezone(UTC).replace(tzinfo=None))
    except (msgspec.DecodeError, ValueError, OverflowError):
        return value  # no time, or none that we can reckon with: Postgres decides


def _outcome(given: Columns) -> Columns:
    given = _with_times_in_utc(given)
    if "id" in given:
        return given
    market = "/".join(
        bytes(given.get(name, b"")).decode() for name in ("windowId", "stockTicker", "predictionMarketId")
    )
    now = datetime.now(UTC).replace(tzinfo=None)
    return {"id": _raw(str(uuid.uuid5(uuid.NAMESPACE_OID, market))), "createdAt": _raw(now), **given}


async def _insert(connection: Connection, table: str, rows: Sequence[Columns]) -> int:
    if not rows:
        return 0
    result = await connection.execute(_INSERT.format(table=table), msgspec.json.encode(rows).decode())
    return int(result.rpartition(" ")[2])
