"""Lessons over the API: stored from outside, looked up when an agent decides, consolidated.

The paths and field names are those that memory clients know: a lesson is a memory there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from data_bridge.errors import BackendError
from data_bridge.redaction import page_text, redacted
from trainer.console.ingest_api import NAME
from trainer.console.keys import Caller
from trainer.console.operations import TEXT, Incoming, Operation
from trainer.console.problems import Refused
from trainer.console.services import Services, audited
from trainer.ledger.lesson_admissions import AdmissionRow, list_admissions
from trainer.ledger.releases import read_from_database
from trainer.lesson import ALL_KINDS, LONGEST_CONTENT, LONGEST_TITLE, FoundLesson, LessonKind

_LONGEST_CONTEXT = 8_000
_MOST = 50


class StoreBody(BaseModel):
    """A lesson from outside. It is kept as a quotation, and no agent is shown it before it is gated."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str = Field(pattern=NAME, description="Whose lesson it is; with an agent's key, that agent.")
    memory_type: LessonKind
    content: str = Field(min_length=1, max_length=LONGEST_CONTENT, pattern=TEXT)
    title: str | None = Field(default=None, min_length=1, max_length=LONGEST_TITLE, pattern=TEXT)


@dataclass(frozen=True, slots=True)
class StoredMemory:
    id: str
    duplicate: bool
    """Whether the same lesson was there before."""
    trust: str = "api"
    shown: bool = False
    """Not before it is gated."""


async def store_memory(asked: Incoming) -> Response:
    body: StoreBody = asked.body
    agent_id = own_agent(asked.caller, body.agent_id)
    if not body.content.strip():
        raise Refused(422, "content: write something.", field="content")
    async with audited(asked.services, asked.caller, asked.request, "store a lesson", agent_id):
        try:
            stored = await asked.services.lessons.store_sent(agent_id, body.memory_type, body.content, body.title)
        except BackendError as error:
            raise _no_embedding(error) from error
    answer = StoredMemory(stored.lesson_id, not stored.is_new)
    status = 201 if stored.is_new else 200
    return Response(TypeAdapter(StoredMemory).dump_json(answer), status, media_type="application/json")


def own_agent(caller: Caller, agent_id: str) -> str:
    """The agent that this key may speak for. Refused for another's."""
    kind, owner = caller.writes_for or ("console", "")
    if kind == "agent" and agent_id != owner:
        raise Refused(403, f"agent_id: this key is of {owner!r} only.", field="agent_id")
    if kind == "team" and not agent_id.startswith(f"{owner}/"):
        raise Refused(403, f"agent_id: this key is of agents that begin with {owner + '/'!r}.", field="agent_id")
    return agent_id


def _no_embedding(error: BackendError) -> Refused:
    return Refused(503, str(error), headers={"Retry-After": "5"})


class RetrieveBody(BaseModel):
    """What an agent is about to decide on."""

    model_config = ConfigDict(extra="forbid")

    context: str = Field(min_length=1, max_length=_LONGEST_CONTEXT, pattern=TEXT)
    k: int = Field(default=5, ge=1, le=_MOST)
    memory_types: list[LessonKind] = Field(default_factory=lambda: list(ALL_KINDS), min_length=1, max_length=3)
    agent_id: str = Field(pattern=NAME)
    role: str | None = Field(default=None, min_length=1, max_length=100, pattern=TEXT)
    as_of: AwareDatetime | None = Field(
        default=None, description="The time of the decision in the game's clock; unset: now. Nothing later is given."
    )


@dataclass(frozen=True, slots=True)
class MemorySource:
    window_id: str
    trajectory_id: str
    verdict: str


@dataclass(frozen=True, slots=True)
class MemoryItem:
    id: str
    memory_type: str
    title: str
    content: str
    score: float
    """Of both rankings together; only the order means something."""
    cosine: float
    words: float
    trust: str
    importance: float
    support: int
    contradictions: int
    uses: int
    usefulness: float | None
    known_at: datetime
    sources: list[MemorySource]


@dataclass(frozen=True, slots=True)
class Retrieved:
    items: list[MemoryItem]
    took_ms: float


async def retrieve_memories(asked: Incoming) -> Retrieved:
    body: RetrieveBody = asked.body
    agent_id = own_agent(asked.caller, body.agent_id)
    started = time.perf_counter()
    try:
        found = await asked.services.lessons.retrieve(
            body.context, agent_id=agent_id, role=body.role, as_of=body.as_of, k=body.k, kinds=body.memory_types
        )
    except BackendError as error:
        raise _no_embedding(error) from error
    items = redacted([_item(one) for one in found], page_text)
    return Retrieved(items, round((time.perf_counter() - started) * 1000, 2))


def _item(found: FoundLesson) -> MemoryItem:
    lesson = found.lesson
    return MemoryItem(
        lesson.lesson_id,
        lesson.kind.value,
        lesson.title,
        lesson.content,
        found.score,
        found.cosine,
        found.words,
        lesson.trust.value,
        lesson.importance,
        lesson.support,
        lesson.contradictions,
        lesson.uses,
        lesson.usefulness,
        lesson.known_at,
        [MemorySource(one.window_id, one.trajectory_id, one.verdict_key) for one in lesson.sources],
    )


class PolicyQuery(BaseModel):
    """Who is about to decide."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str = Field(pattern=NAME)


@dataclass(frozen=True, slots=True)
class PromotedPolicy:
    """Which lessons an agent is to be shown, by the release that it was given."""

    lessons_policy: str
    """Such as ``lessons-2-all-notes``; empty: none."""
    release: str | None
    """Null before the first promotion."""


async def policy_of_agent(asked: Incoming) -> PromotedPolicy:
    agent_id = own_agent(asked.caller, asked.query.agent_id)
    used = (await read_from_database(asked.services.database, asked.services.model)).for_agent(agent_id)
    return PromotedPolicy("", None) if used is None else PromotedPolicy(used.lessons_policy, used.release.name)


class ConsolidateBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    whole: bool = Field(default=False, description="Also compare what was compared before.")


@dataclass(frozen=True, slots=True)
class ConsolidationCounts:
    compared: int
    merged: int
    rules: int
    contradicted: int
    retired: int
    purged: int
    deeds: list[str]


async def consolidate_memories(asked: Incoming) -> ConsolidationCounts:
    body: ConsolidateBody = asked.body
    lessons = asked.services.lessons
    async with audited(asked.services, asked.caller, asked.request, "consolidate lessons", lessons.game):
        try:
            done = await lessons.consolidate(whole=body.whole)
        except BackendError as error:
            raise _no_embedding(error) from error
    counts = (done.compared, done.merged, done.rules, done.contradicted, done.retired, done.purged)
    return ConsolidationCounts(*counts, redacted(done.deeds, page_text))


class GateBody(BaseModel):
    """Lessons from outside that are to be put to the gate: all that wait now, or one agent's."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str | None = Field(default=None, pattern=NAME, description="Whose lessons; unset: everybody's.")


@dataclass(frozen=True, slots=True)
class AskedAdmission:
    admission: str
    """Of these very lessons: asking for the same ones again is the same admission."""
    lessons: int
    state: str
    """``waiting`` until an idle host has compared decisions with and without them."""


async def gate_memories(asked: Incoming) -> AskedAdmission:
    body: GateBody = asked.body
    return await ask_the_gate(asked.services, asked.caller, asked.request, body.agent_id)


async def ask_the_gate(services: Services, caller: Caller, request: Request, agent_id: str | None) -> AskedAdmission:
    """Have an idle host put the lessons that wait to the gate. Refused (409) if none waits."""
    async with audited(services, caller, request, "put lessons to the gate", agent_id or "all agents"):
        admission = await services.lessons.ask_the_gate(agent_id, asked_by=caller.name)
        if admission is None:
            raise Refused(409, "No lesson from outside waits for the gate.")
    return AskedAdmission(admission.admission_id, len(admission.lesson_ids), "waiting")


@dataclass(frozen=True, slots=True)
class Admissions:
    entries: list[AdmissionRow]


async def get_admissions(asked: Incoming) -> Admissions:
    found = await list_admissions(asked.services.database, asked.services.lessons.game)
    return Admissions(redacted(found, page_text))


OPERATIONS = (
    Operation(
        "POST",
        "/memory/gate",
        "Have lessons from outside compared with and without, and shown if they pass the gate",
        gate_memories,
        AskedAdmission,
        body=GateBody,
        status=202,
        acts=True,
        problems=(409,),
    ),
    Operation(
        "GET",
        "/memory/gate",
        "Lessons from outside that were put to the gate, and what came of it",
        get_admissions,
        Admissions,
    ),
    Operation(
        "POST",
        "/memory/store",
        "Keep a lesson from outside",
        store_memory,
        StoredMemory,
        body=StoreBody,
        status=201,
        also=(200,),
        acts=True,
        key="ingest",
    ),
    Operation(
        "POST",
        "/memory/retrieve",
        "Look up lessons for a decision, as of its time",
        retrieve_memories,
        Retrieved,
        body=RetrieveBody,
        key="ingest",
        problems=(403,),
    ),
    Operation(
        "GET",
        "/memory/policy",
        "Which lessons an agent is to be shown, by the release that it was given",
        policy_of_agent,
        PromotedPolicy,
        query=PolicyQuery,
        key="ingest",
        problems=(403,),
    ),
    Operation(
        "POST",
        "/memory/consolidate",
        "Merge what says the same, and forget what is worth least",
        consolidate_memories,
        ConsolidationCounts,
        body=ConsolidateBody,
        status=202,
        acts=True,
    ),
)
