"""Rows that agents, teams and the game send, each with a key of its own; and an agent that is to be forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from data_bridge.errors import ConfigurationError
from data_bridge.facts import record_facts
from data_bridge.ingest import SentTrajectory, StoredTrajectory, store_sent
from data_bridge.lookup import trajectories_of
from data_bridge.models import Fact, NewsEvent, PredictionOutcome, StockOutcome, WindowOutcomes
from data_bridge.outcomes import record_outcomes
from data_bridge.redaction import page_text, redacted
from trainer.console.operations import Incoming, Operation
from trainer.console.problems import Refused
from trainer.console.services import audited
from trainer.ledger.forget import ForgottenRows, forget_agent
from trainer.ledger.ingest_keys import IngestKey, list_ingest_keys, make_ingest_key, revoke_ingest_key
from trainer.ledger.run_folder import forget_in_folders

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,99}$"
WINDOW_ID = (
    r"^2[0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):00$|"
    r"^2[0-9]{3}-[0-9]{2}-(29|3[01])T[0-9]{2}:00$"
)
_SHORT = Field(default=None, max_length=200)


class SentRow(BaseModel):
    """A row of ``trajectories``: the columns that are the agent's to say. Its key says whose it is."""

    model_config = ConfigDict(extra="forbid")

    trajectoryId: str = Field(pattern=NAME)
    agentId: str | None = Field(default=None, pattern=NAME, description="With a team's key: which of its agents.")
    startTime: AwareDatetime = Field(description="Its hour is the window, which must still be open.")
    endTime: AwareDatetime
    stepsJson: str = Field(max_length=5_000_000, description="As the game writes it.")
    metadataJson: str = Field(default="{}", max_length=100_000)
    scenarioId: str | None = Field(default=None, max_length=100)
    finalBalance: float | None = None
    finalPnL: float | None = None
    totalReward: float = 0.0
    isTrainingData: bool = Field(default=True, description="False: stored, and never trained on.")
    isEvaluation: bool = False


class SentRows(BaseModel):
    model_config = ConfigDict(extra="forbid")

    trajectories: list[SentRow] = Field(min_length=1, max_length=500)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """One result for each row, in order: a bad row costs itself."""

    results: list[StoredTrajectory]


async def ingest_trajectories(asked: Incoming) -> StoredRows:
    body: SentRows = asked.body
    kind, owner = asked.caller.writes_for or ("console", "")
    if kind == "game":
        raise Refused(403, "The game's key sends facts: give each agent or team a key of its own.")
    named = [(row, _stamped(kind, owner, row)) for row in body.trajectories]
    sent = [sent_row(row, agent) for row, agent in named if agent is not None]
    stored = iter(await store_sent(asked.services.database, sent))
    nobody = f"agentId: this key writes for {owner!r} only" if kind == "agent" else "agentId: say which agent this is"
    results = [
        next(stored) if agent is not None else StoredTrajectory(row.trajectoryId, "", None, "refused", nobody)
        for row, agent in named
    ]
    return StoredRows(redacted(results, page_text))


def sent_row(row: SentRow, agent_id: str) -> SentTrajectory:
    return SentTrajectory(
        row.trajectoryId,
        agent_id,
        row.startTime,
        row.endTime,
        row.stepsJson,
        row.metadataJson,
        row.scenarioId,
        row.finalBalance,
        row.finalPnL,
        row.totalReward,
        row.isTrainingData,
        row.isEvaluation,
    )


def _stamped(kind: str, owner: str, row: SentRow) -> str | None:
    """Whose row it is, by its key: no row can claim another's name. None if it tries to, or does not say."""
    if kind == "agent":
        return owner if row.agentId in (None, owner) else None
    if row.agentId is None:
        return None
    if kind == "team" and not row.agentId.startswith(f"{owner}/"):
        return f"{owner}/{row.agentId}"
    return row.agentId


class SentNews(BaseModel):
    model_config = ConfigDict(extra="forbid")

    headline: str = Field(min_length=1, max_length=1000)
    timestamp: AwareDatetime | None = None
    sentiment: str | None = Field(default=None, max_length=20)


class SentStock(BaseModel):
    model_config = ConfigDict(extra="forbid")

    ticker: str = Field(min_length=1, max_length=20, pattern=r"^[^\x00]+$")
    startPrice: float | None = Field(default=None, ge=0, le=99_999_999)
    endPrice: float | None = Field(default=None, ge=0, le=99_999_999)
    changePercent: float | None = Field(default=None, ge=-100, le=999)
    sentiment: str | None = Field(default=None, max_length=20, pattern=r"^[^\x00]*$")
    news: list[SentNews] = Field(default_factory=list, max_length=100)


class SentPrediction(BaseModel):
    model_config = ConfigDict(extra="forbid")

    marketId: str = Field(min_length=1, max_length=100, pattern=r"^[^\x00]+$")
    question: str | None = Field(default=None, max_length=1000, pattern=r"^[^\x00]*$")
    outcome: str | None = Field(default=None, max_length=20, pattern=r"^[^\x00]*$")
    finalProbability: float | None = Field(default=None, ge=0, le=1)
    volume: float | None = Field(default=None, ge=0, le=1e12)


class SentFact(BaseModel):
    """Anything else that is known afterwards: about a quest, a ticket, an agent."""

    model_config = ConfigDict(extra="forbid")

    subject: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")
    kind: str = Field(min_length=1, max_length=60, pattern=r"^[^\x00]+$")
    before: float | None = Field(default=None, ge=-1e15, le=1e15)
    after: float | None = Field(default=None, ge=-1e15, le=1e15)
    text: str | None = Field(default=None, max_length=2000, pattern=r"^[^\x00]*$")
    at: AwareDatetime | None = None
    visible: bool = Field(default=False, description="Whether the agents could see it when they decided.")


class SentFacts(BaseModel):
    """What really happened in a window that has ended."""

    model_config = ConfigDict(extra="forbid")

    windowId: str = Field(
        pattern=WINDOW_ID,
        examples=["2026-11-02T10:00"],
    )
    hours: int = Field(default=1, ge=1, le=168)
    stocks: list[SentStock] = Field(default_factory=list, max_length=500)
    predictions: list[SentPrediction] = Field(default_factory=list, max_length=500)
    facts: list[SentFact] = Field(default_factory=list, max_length=2000)


@dataclass(frozen=True, slots=True)
class StoredFacts:
    window_id: str
    written: int
    """Rows added or changed; 0 for a repetition."""


async def ingest_facts(asked: Incoming) -> StoredFacts:
    body: SentFacts = asked.body
    kind, _ = asked.caller.writes_for or ("console", "")
    if kind not in ("game", "console"):
        raise Refused(403, "Facts are the game's to send: no agent says what happened.")
    outcomes = WindowOutcomes(
        tuple(
            StockOutcome(
                one.ticker,
                one.startPrice,
                one.endPrice,
                one.changePercent,
                one.sentiment,
                tuple(NewsEvent(news.headline, news.timestamp, news.sentiment) for news in one.news),
            )
            for one in body.stocks
        ),
        tuple(
            PredictionOutcome(one.marketId, one.question, one.outcome, one.finalProbability, one.volume)
            for one in body.predictions
        ),
    )
    facts = [Fact(one.subject, one.kind, one.before, one.after, one.text, one.at, one.visible) for one in body.facts]
    database = asked.services.database
    now: datetime = await database.pool.fetchval("SELECT now()")
    async with audited(asked.services, asked.caller, asked.request, "send facts", body.windowId):
        try:
            written = await record_outcomes(database, body.windowId, outcomes, hours=body.hours, now=now)
            written += await record_facts(database, body.windowId, facts, hours=body.hours, now=now)
        except ConfigurationError as error:
            raise Refused(409, str(error)) from None
    return StoredFacts(body.windowId, written)


# Keys


class IngestKeyBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["agent", "team", "game"]
    owner: str = Field(pattern=NAME, description="The agent's id, the team's name, or the game's.")

    @model_validator(mode="after")
    def _no_team_within_a_team(self) -> IngestKeyBody:
        if self.kind == "team" and "/" in self.owner:
            raise ValueError("owner: a team's name has no slash, as its agents' ids are written TEAM/AGENT")
        return self


@dataclass(frozen=True, slots=True)
class NewIngestKey:
    key_id: str
    kind: str
    owner: str
    key: str
    """Shown this once."""


@dataclass(frozen=True, slots=True)
class IngestKeys:
    entries: list[IngestKey]


async def make_key(asked: Incoming) -> NewIngestKey:
    body: IngestKeyBody = asked.body
    target = f"{body.kind} {body.owner}"
    async with audited(asked.services, asked.caller, asked.request, "make an ingest key", target):
        made, key = await make_ingest_key(asked.services.database, body.kind, body.owner)
    return NewIngestKey(made.key_id, made.kind, made.owner, key)


async def list_keys(asked: Incoming) -> IngestKeys:
    return IngestKeys(await list_ingest_keys(asked.services.database))


async def revoke_key(asked: Incoming) -> IngestKey:
    key_id = asked.part("key_id")
    async with audited(asked.services, asked.caller, asked.request, "revoke an ingest key", key_id):
        found = await revoke_ingest_key(asked.services.database, key_id)
        if found is None:
            raise Refused(404, f"There is no ingest key {key_id!r}.")
    return found


# An agent that is to be forgotten


@dataclass(frozen=True, slots=True)
class AgentForgotten:
    agent_id: str
    rows: ForgottenRows
    files: int
    """In the folders of this host's runs; other hosts' consoles look after their own within the hour."""


async def delete_agent(asked: Incoming) -> AgentForgotten:
    agent_id = asked.part("agent_id")
    async with audited(asked.services, asked.caller, asked.request, "forget an agent", agent_id):
        logged = await trajectories_of(asked.services.database, agent_id)
        found = await forget_agent(asked.services.database, agent_id, logged)
        files = await asyncio.to_thread(forget_in_folders, asked.services.home, agent_id, logged)
        if found.total + files == 0:
            raise Refused(404, f"The ledger has nothing of {agent_id!r}.")
    return AgentForgotten(agent_id, found, files)


OPERATIONS = (
    Operation(
        "POST",
        "/ingest/trajectories",
        "Send trajectories, stamped by the key with their agent and by their start with their window",
        ingest_trajectories,
        StoredRows,
        body=SentRows,
        acts=True,
        key="ingest",
    ),
    Operation(
        "POST",
        "/ingest/facts",
        "Send what really happened in a window",
        ingest_facts,
        StoredFacts,
        body=SentFacts,
        acts=True,
        key="ingest",
        problems=(409,),
    ),
    Operation("GET", "/ingest/keys", "Keys for ingest, without the keys", list_keys, IngestKeys),
    Operation(
        "POST",
        "/ingest/keys",
        "Make a key for an agent, a team or the game",
        make_key,
        NewIngestKey,
        body=IngestKeyBody,
        acts=True,
        status=201,
    ),
    Operation(
        "DELETE",
        "/ingest/keys/{key_id}",
        "End a key for ingest",
        revoke_key,
        IngestKey,
        acts=True,
        problems=(404,),
        parts={"key_id": "^[0-9a-f]{1,32}$"},
    ),
    Operation(
        "DELETE",
        "/agents/{agent_id}",
        "Forget everything of one agent",
        delete_agent,
        AgentForgotten,
        acts=True,
        problems=(404, 409),
        parts={"agent_id": NAME},
    ),
)
