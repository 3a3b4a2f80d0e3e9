"""Rewards: the history of those that were trained, and one on demand by the same judge, cache and ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, RootModel

from data_bridge.lookup import roles_of
from data_bridge.redaction import page_text, redacted
from trainer.console.operations import TEXT, Incoming, Operation, Page, PageQuery, cursor_of, page_of, parts_of
from trainer.console.services import audited
from trainer.console.training_api import MODEL
from trainer.ledger.read.reward_history import RewardRow, reward_history

_LONGEST = 20_000


class TaskResult(BaseModel):
    """What a model answered to a task."""

    model_config = ConfigDict(extra="forbid")

    task: str = Field(min_length=1, max_length=_LONGEST, pattern=TEXT)
    result: str = Field(min_length=1, max_length=_LONGEST, pattern=TEXT)
    action: str | None = Field(default=None, max_length=200, pattern=TEXT, description="What it did, in a word.")


class ScoreLimits(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rubric: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{0,40}$", description="A built-in rubric.")
    max_cost: float | None = Field(default=None, ge=0, le=1e6, description="US dollars, for this request.")


class LoggedBody(ScoreLimits):
    """A trajectory of the log, judged beside the others of its window."""

    trajectory_id: str = Field(min_length=1, max_length=200, pattern=TEXT)


class ResultBody(ScoreLimits):
    """A task's result, judged alone."""

    task_result: TaskResult


class CalculateBody(RootModel[LoggedBody | ResultBody]):
    """What is to be judged."""


@dataclass(frozen=True, slots=True)
class Component:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class CalculatedReward:
    score: float
    explanation: str
    components: list[Component]
    cached: bool
    """Whether it was paid for before."""
    cost: float
    judge: str
    compared_with: int


async def calculate_reward(asked: Incoming) -> CalculatedReward:
    body: LoggedBody | ResultBody = asked.body.root
    target = body.trajectory_id if isinstance(body, LoggedBody) else "a task's result"
    limits: dict[str, Any] = {"rubric": body.rubric, "max_cost": body.max_cost}
    async with audited(asked.services, asked.caller, asked.request, "calculate a reward", target):
        scorer = asked.services.scorer()
        if isinstance(body, LoggedBody):
            score = await scorer.of_logged(body.trajectory_id, **limits)
        else:
            given = body.task_result
            score = await scorer.of_result(given.task, given.result, given.action, **limits)
    return CalculatedReward(
        score.score,
        page_text(score.explanation),
        [Component(one.name, one.value) for one in score.components],
        score.cached,
        score.cost,
        score.judge,
        score.compared_with,
    )


class HistoryQuery(PageQuery):
    agent_id: str | None = Field(default=None, min_length=1, max_length=200, pattern=TEXT)
    role: str | None = Field(default=None, min_length=1, max_length=100, pattern=TEXT)
    model: str | None = Field(default=None, pattern=MODEL)


@dataclass(frozen=True, slots=True)
class RewardEntry:
    trajectory_id: str
    agent_id: str
    role: str | None
    """As the game's row says; null if it does not."""
    window_id: str
    model: str
    run_id: str
    step: int
    score: float
    components: list[Component]
    """What the score became on its way to the advantage; empty where the backend has rewards of its own."""
    at: datetime


_SCANNED = 1000
"""Rewards that are looked through for those of a role, as roles are in the game's rows."""


async def get_reward_history(asked: Incoming) -> Page[RewardEntry]:
    query: HistoryQuery = asked.query
    before: Any = parts_of(query.cursor, datetime.fromisoformat, str, str)
    limit = query.limit if query.role is None else _SCANNED
    rows = await reward_history(
        asked.services.database, agent_id=query.agent_id, model=query.model, before=before, limit=limit + 1
    )
    page = page_of(rows, limit, lambda row: cursor_of(row.at.isoformat(), row.batch_id, row.trajectory_id))
    entries = await with_roles(asked, page.entries)
    if query.role is not None:
        entries = [one for one in entries if one.role == query.role]
    return Page(redacted(entries, page_text), page.next)


async def with_roles(asked: Incoming, rows: list[RewardRow]) -> list[RewardEntry]:
    roles = await roles_of(asked.services.database, [row.trajectory_id for row in rows])
    return [
        RewardEntry(
            row.trajectory_id,
            row.agent_id,
            roles.get(row.trajectory_id),
            row.window_id,
            row.model,
            row.run_id,
            row.step,
            row.score,
            [
                Component(name, value)
                for name in ("validity", "decision", "weight", "advantage")
                if (value := getattr(row, name)) is not None
            ],
            row.at,
        )
        for row in rows
    ]


OPERATIONS = (
    Operation(
        "POST",
        "/rewards/calculate",
        "Have one trajectory or result judged now",
        calculate_reward,
        CalculatedReward,
        body=CalculateBody,
        acts=True,
        problems=(409, 502),
    ),
    Operation(
        "GET",
        "/rewards/history",
        "Rewards that were trained, the latest first",
        get_reward_history,
        Page[RewardEntry],
        query=HistoryQuery,
    ),
)
