"""Advice: what the promoted release would do, or an abstention; and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from data_bridge.ingest import store_sent
from data_bridge.models import ChatMessage
from data_bridge.redaction import page_text
from data_bridge.window_ids import normalise, window_of
from trainer.console.ingest_api import NAME, WINDOW_ID
from trainer.console.operations import TEXT, Incoming, Operation
from trainer.console.problems import Refused
from trainer.console.services import audited
from trainer.ledger.advice import (
    AdviceRow,
    Finding,
    find_advice,
    note_returned,
    note_taken,
    settle_advice,
)

_LONGEST = 100_000


class AskedMessage(BaseModel):
    """One message as the agent's own model would receive it."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1, max_length=_LONGEST, pattern=TEXT)


class AskBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    agent_id: str = Field(pattern=NAME, description="Who decides; with an agent's own key only itself.")
    window_id: str | None = Field(
        default=None,
        pattern=WINDOW_ID,
        description="The hour that it is about: the game's to say; unset: the current one.",
    )


class MessagesBody(AskBody):
    """The conversation at which the agent decides."""

    messages: list[AskedMessage] = Field(min_length=1, max_length=100)


class ObservationBody(AskBody):
    """What the agent sees, as one text."""

    observation: str = Field(min_length=1, max_length=_LONGEST, pattern=TEXT)


class AdviceBody(RootModel[MessagesBody | ObservationBody]):
    """What is to be decided."""


@dataclass(frozen=True, slots=True)
class GivenAdvice:
    """A proposal, or an abstention with its reason."""

    advice_id: str
    proposal: str | None
    confidence: float | None
    """The share of earlier proposals like this that were right; null for an abstention."""
    explanation: str
    release: str | None
    abstained: bool
    reason: str | None
    """In one word why there is no proposal."""


async def ask_advice(asked: Incoming) -> GivenAdvice:
    from trainer.advice.advisor import REASONS, AdviceQuestion

    body: MessagesBody | ObservationBody = asked.body.root
    kind, owner = asked.caller.writes_for or ("console", "")
    is_game = kind in ("game", "console")
    if body.window_id is not None and not is_game:
        raise Refused(403, "window_id: which hour it is, only the game says.", field="window_id")
    if body.window_id is not None and normalise(body.window_id) is None:
        raise Refused(409, "window_id: there is no such hour.", field="window_id")
    if isinstance(body, MessagesBody):
        messages = [ChatMessage(one.role, one.content) for one in body.messages]
    else:
        messages = [ChatMessage("user", body.observation)]
    question = AdviceQuestion(
        _agent(kind, owner, body.agent_id),
        messages,
        body.window_id or window_of(await _now(asked)),
        asked.caller.name,
        is_vouched=is_game,
    )
    row = await asked.services.advisor().advise(question)
    is_shown = row.state == "shown"
    return GivenAdvice(
        advice_id=row.advice_id,
        proposal=page_text(row.proposal) if is_shown and row.proposal is not None else None,
        confidence=row.confidence if is_shown else None,
        explanation=page_text(row.explanation) if is_shown else REASONS[row.reason],
        release=row.release or None,
        abstained=not is_shown,
        reason=row.reason or None,
    )


async def _now(asked: Incoming) -> datetime:
    now: datetime = await asked.services.database.pool.fetchval("SELECT now()")
    return now


def _agent(kind: str, owner: str, agent_id: str) -> str:
    """For whom it is, by the key. Refused if the key is not for that agent."""
    if kind == "agent" and agent_id != owner:
        raise Refused(403, f"agent_id: this key asks for {owner!r} only.", field="agent_id")
    return f"{owner}/{agent_id}" if kind == "team" and not agent_id.startswith(f"{owner}/") else agent_id


# What came of it


class OutcomeBody(BaseModel):
    """What came of a proposal."""

    model_config = ConfigDict(extra="forbid")

    taken: bool | None = Field(default=None, description="Whether the agent did what was proposed.")
    trajectory_id: str | None = Field(
        default=None, pattern=NAME, description="The row in which the game logs the decision; unset: we send one."
    )
    right: bool | None = Field(default=None, description="Whether the proposal was right: only the game's to say.")
    decision_right: bool | None = Field(
        default=None, description="Whether what the agent did was right: only the game's to say."
    )


@dataclass(frozen=True, slots=True)
class AdviceOutcome:
    """What is known of a proposal now."""

    advice_id: str
    state: str
    taken: bool | None
    taken_by: str | None
    right: bool | None
    right_by: str | None
    decision_right: bool | None
    trajectory_id: str | None
    returned: str
    """What became of it as a trajectory: ``stored``, ``known``, or why not; empty if it was not sent."""


async def tell_outcome(asked: Incoming) -> AdviceOutcome:
    body: OutcomeBody = asked.body
    row = await _own(asked)
    is_game = (asked.caller.writes_for or ("console", ""))[0] in ("game", "console")
    if not is_game and (body.right is not None or body.decision_right is not None):
        raise Refused(403, "What was right is the game's to say, or its facts': an agent may say what it did.")
    if body.taken and row.state != "shown":
        raise Refused(409, "This proposal was not shown, so nobody can have taken it.")
    database = asked.services.database
    async with audited(asked.services, asked.caller, asked.request, "tell an outcome of advice", row.advice_id):
        if body.taken is not None:
            await note_taken(database, row.advice_id, body.taken, "game" if is_game else "agent", body.trajectory_id)
        if body.right is not None or body.decision_right is not None:
            is_final = body.right is not None
            found = Finding(row.advice_id, body.right, body.decision_right, is_final=is_final)
            await settle_advice(database, [found], "game")
        if body.taken and body.trajectory_id is None and row.trajectory_id is None:
            await _give_back(asked, row)
    now = await find_advice(database, row.advice_id)
    assert now is not None
    return AdviceOutcome(
        now.advice_id,
        now.state,
        now.taken,
        now.taken_by,
        now.right,
        now.right_by,
        now.decision_right,
        now.trajectory_id,
        now.returned,
    )


async def _own(asked: Incoming) -> AdviceRow:
    """The proposal, if it is the caller's. Another's is as if it were not there."""
    advice_id = asked.part("advice_id")
    kind, owner = asked.caller.writes_for or ("console", "")
    row = await find_advice(asked.services.database, advice_id)
    is_own = row is not None and (
        kind in ("game", "console")
        or (kind == "agent" and row.agent_id == owner)
        or (kind == "team" and row.agent_id.startswith(f"{owner}/"))
    )
    if row is None or not is_own:
        raise Refused(404, f"There is no advice {advice_id!r}.")
    return row


async def _give_back(asked: Incoming, row: AdviceRow) -> None:
    """The proposal as a trajectory of the log, once; a row that cannot be stored says why and costs nothing else."""
    from trainer.advice.trajectory import trajectory_of

    sent = trajectory_of(row, await _now(asked))
    if sent is None:
        return
    [stored] = await store_sent(asked.services.database, [sent])
    if stored.state == "refused":
        await note_returned(asked.services.database, row.advice_id, None, page_text(f"refused: {stored.reason}"))
    else:
        await note_returned(asked.services.database, row.advice_id, stored.trajectory_id, stored.state)


OPERATIONS = (
    Operation(
        "POST",
        "/advice",
        "What the promoted release would do, or an abstention",
        ask_advice,
        GivenAdvice,
        body=AdviceBody,
        acts=True,
        often=True,
        key="ingest",
        problems=(409,),
    ),
    Operation(
        "POST",
        "/advice/{advice_id}/outcome",
        "Say what came of a proposal",
        tell_outcome,
        AdviceOutcome,
        body=OutcomeBody,
        acts=True,
        often=True,
        key="ingest",
        problems=(404, 409),
        parts={"advice_id": "^[0-9a-f]{32}$"},
    ),
)
