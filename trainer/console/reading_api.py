"""Calls that only look: runs with their steps, windows, patterns, the audit log, the stream of events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from data_bridge.redaction import page_text, redacted
from trainer.console.live import MAX_STREAMS
from trainer.console.operations import Incoming, Operation, Page, PageQuery, cursor_of, page_of, parts_of
from trainer.console.problems import Refused
from trainer.console.prometheus import MEDIA_TYPE, exposition
from trainer.console.services import Services
from trainer.console.training_api import MODEL
from trainer.ledger.commands import start_of_run
from trainer.ledger.events import LoggedEvent
from trainer.ledger.read.boards import system_facts
from trainer.ledger.read.listings import (
    AuditRow,
    PatternRow,
    RunRow,
    UsedWindow,
    list_all_runs,
    list_audit,
    list_windows,
    patterns_by_week,
    run_row,
)
from trainer.ledger.read.now import ProgressFacts, StepPoint, now_of, steps_of

RUN_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class RunsQuery(PageQuery):
    model: str | None = Field(default=None, pattern=MODEL, description="Only runs of this model.")
    state: Literal["running", "done", "interrupted", "failed"] | None = Field(default=None)


async def get_runs(asked: Incoming) -> Page[RunRow]:
    query: RunsQuery = asked.query
    before: Any = parts_of(query.cursor, datetime.fromisoformat, str)
    rows = await list_all_runs(
        asked.services.database, model=query.model, state=query.state, before=before, limit=query.limit + 1
    )
    return page_of(rows, query.limit, lambda row: cursor_of(row.started_at.isoformat(), row.run_id))


@dataclass(frozen=True, slots=True)
class RunDetail:
    """One run. A run that was asked for and has not begun is ``requested``."""

    run_id: str
    model: str
    state: str
    backend: str | None
    base_model: str | None
    host: str | None
    attempts: int
    error: str | None
    started_at: datetime | None
    finished_at: datetime | None
    steps: int
    trajectories: int
    left_out: int
    cost_usd: float
    judge_calls: int
    ruling: str | None
    release: str | None
    progress: ProgressFacts
    report: str | None
    """Path of its page."""


async def get_run(asked: Incoming) -> RunDetail:
    run_id, database = asked.part("run_id"), asked.services.database
    found = await run_row(database, run_id)
    if found is None:
        command = await start_of_run(database.pool, run_id)
        if command is None:
            raise Refused(404, f"There is no run {run_id!r}.")
        nothing: dict[str, Any] = dict.fromkeys(
            ("backend", "base_model", "host", "started_at", "finished_at", "ruling", "release", "report")
        )
        nothing |= dict.fromkeys(("attempts", "steps", "trajectories", "left_out", "judge_calls"), 0)
        state = "requested" if command.state in ("waiting", "taken") else "failed"
        error = command.outcome if state == "failed" else None
        return RunDetail(run_id, command.model, state, error=error, cost_usd=0.0, progress=ProgressFacts(), **nothing)
    row, hand = found
    return RunDetail(
        run_id=row.run_id,
        model=row.model,
        state=row.state,
        backend=row.backend,
        base_model=hand.base_model,
        host=row.host,
        attempts=row.attempts,
        error=row.error,
        started_at=row.started_at,
        finished_at=row.finished_at,
        steps=row.steps,
        trajectories=row.trajectories,
        left_out=row.left_out,
        cost_usd=row.cost_usd,
        judge_calls=hand.judge_calls,
        ruling=row.ruling,
        release=row.release,
        progress=hand.progress,
        report=f"/runs/{row.run_id}/report",
    )


class MetricsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: int = Field(default=0, ge=0, le=2**31 - 1, description="Only steps above this one.")
    limit: int = Field(default=200, ge=1, le=1000)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    run_id: str
    steps: list[StepPoint]


async def get_run_metrics(asked: Incoming) -> RunMetrics:
    run_id, database = asked.part("run_id"), asked.services.database
    if await run_row(database, run_id) is None:
        raise Refused(404, f"There is no run {run_id!r}.")
    return RunMetrics(run_id, await steps_of(database, run_id, after=asked.query.after, limit=asked.query.limit))


class WindowsQuery(PageQuery):
    model: str | None = Field(default=None, pattern=MODEL)


async def get_windows(asked: Incoming) -> Page[UsedWindow]:
    query: WindowsQuery = asked.query
    before = parts_of(query.cursor, str)
    model = query.model or asked.services.model
    rows = await list_windows(
        asked.services.database, model, before=None if before is None else before[0], limit=query.limit + 1
    )
    return page_of(redacted(rows, page_text), query.limit, lambda row: cursor_of(row.window_id))


class PatternsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, pattern=MODEL)
    weeks: int = Field(default=8, ge=1, le=104)


@dataclass(frozen=True, slots=True)
class Patterns:
    entries: list[PatternRow]


async def get_patterns(asked: Incoming) -> Patterns:
    query: PatternsQuery = asked.query
    since = date.today() - timedelta(weeks=query.weeks)
    found = await patterns_by_week(asked.services.database, query.model or asked.services.model, since)
    return Patterns(redacted(found, page_text))


async def get_audit(asked: Incoming) -> Page[AuditRow]:
    query: PageQuery = asked.query
    before = parts_of(query.cursor, _whole)
    rows = await list_audit(
        asked.services.database, before=None if before is None else before[0], limit=query.limit + 1
    )
    return page_of(rows, query.limit, lambda row: cursor_of(row.audit_id))


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError
    return value


# The stream


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    after: int | None = Field(
        default=None, ge=0, lt=2**63, description="Only events above this one; `Last-Event-ID` counts more."
    )


def _sent(event: LoggedEvent) -> dict[str, str]:
    said = {
        "id": event.event_id,
        "at": event.at.isoformat(),
        "kind": event.kind.value,
        "model": event.model,
        "run_id": event.run_id,
        "data": redacted(event.data, page_text),
    }
    return {"id": str(event.event_id), "event": event.kind.value, "data": json.dumps(said)}


async def get_events(asked: Incoming) -> Response:
    """Server-sent events, for as long as the client listens."""
    from sse_starlette import EventSourceResponse

    hub, last = asked.services.hub, asked.request.headers.get("last-event-id")
    if last is not None and not (last.isascii() and last.isdecimal() and len(last) < 19):
        raise Refused(422, "Last-Event-ID: not one that this stream gave.", field="Last-Event-ID")
    if hub.streams >= MAX_STREAMS:
        raise Refused(429, "Too many streams are open.", headers={"Retry-After": "10"})
    after = int(last) if last is not None else asked.query.after
    position = hub.position if after is None else after

    async def stream() -> AsyncIterator[dict[str, Any]]:
        yield {"retry": 1000, "comment": "events follow"}
        async for event in hub.after(position):
            if not asked.is_still_known():
                return  # whoever comes back is asked for the key
            yield _sent(event)

    return EventSourceResponse(stream(), ping=15, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def metrics_of(services: Services) -> Response:
    """What Prometheus reads."""
    facts = await now_of(services.database, services.model)
    return Response(exposition(facts, await system_facts(services.database), services.hub), media_type=MEDIA_TYPE)


async def get_metrics(asked: Incoming) -> Response:
    return await metrics_of(asked.services)


OPERATIONS = (
    Operation("GET", "/metrics", "Figures for Prometheus", get_metrics, str, media_type=MEDIA_TYPE),
    Operation("GET", "/runs", "Runs, the latest first", get_runs, Page[RunRow], query=RunsQuery),
    Operation("GET", "/runs/{run_id}", "One run", get_run, RunDetail, problems=(404,), parts={"run_id": RUN_ID}),
    Operation(
        "GET",
        "/runs/{run_id}/metrics",
        "The steps of a run",
        get_run_metrics,
        RunMetrics,
        query=MetricsQuery,
        problems=(404,),
        parts={"run_id": RUN_ID},
    ),
    Operation(
        "GET", "/windows", "Windows that runs met, the newest first", get_windows, Page[UsedWindow], query=WindowsQuery
    ),
    Operation("GET", "/patterns", "What was wrong with rows, by week", get_patterns, Patterns, query=PatternsQuery),
    Operation("GET", "/audit", "What was done, by whom and why", get_audit, Page[AuditRow], query=PageQuery),
    Operation(
        "GET",
        "/events",
        "What happens, as server-sent events",
        get_events,
        str,
        query=EventsQuery,
        headers={"Last-Event-ID": "The last event that was seen: the stream continues after it."},
        media_type="text/event-stream",
    ),
)
