"""Rewards: the history of those that were trained, and one on demand by the same judge, cache and ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag

from data_bridge.redaction import page_text, redacted
from trainer.console.ingest_api import NAME, SentRow, sent_row
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


class GivenRow(SentRow):
    """A row of ``trajectories`` in the game's shape, which is judged and not stored."""

    agentId: str = Field(pattern=NAME)


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


class GivenBody(ScoreLimits):
    """A row that the log does not have, judged beside the rows of its window; alone if the log has none of them."""

    trajectory: GivenRow


_KINDS = {"trajectory_id": "(logged)", "task_result": "(result)", "trajectory": "(given)"}


def _kind_of(body: object) -> str | None:
    """Which of the bodies this is meant to be, by its field: so that a fault is reported of that one."""
    return next((kind for name, kind in _KINDS.items() if isinstance(body, dict) and name in body), None)


_Asked = Annotated[
    Annotated[LoggedBody, Tag("(logged)")]
    | Annotated[ResultBody, Tag("(result)")]
    | Annotated[GivenBody, Tag("(given)")],
    Discriminator(
        _kind_of,
        custom_error_type="nothing_to_judge",
        custom_error_message="Give a trajectory_id, a trajectory or a task_result",
    ),
]


class CalculateBody(RootModel[_Asked]):
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
    body: LoggedBody | ResultBody | GivenBody = asked.body.root
    match body:
        case LoggedBody():
            target = body.trajectory_id
        case GivenBody():
            target = f"{body.trajectory.trajectoryId}, as given"
        case ResultBody():
            target = "a task's result"
    limits: dict[str, Any] = {"rubric": body.rubric, "max_cost": body.max_cost}
    async with audited(asked.services, asked.caller, asked.request, "calculate a reward", target):
        scorer = asked.services.scorer()
        if isinstance(body, LoggedBody):
            score = await scorer.of_logged(body.trajectory_id, **limits)
        elif isinstance(body, GivenBody):
            row = body.trajectory
            score = await scorer.of_given(sent_row(row, row.agentId), **limits)
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
    """As the game's row said when it was trained; null if it named none."""
    window_id: str
    model: str
    run_id: str
    step: int
    score: float
    components: list[Component]
    """What the score became on its way to the advantage; empty where the backend has rewards of its own."""
    at: datetime


async def get_reward_history(asked: Incoming) -> Page[RewardEntry]:
    query: HistoryQuery = asked.query
    before: Any = parts_of(query.cursor, datetime.fromisoformat, str, str)
    rows = await reward_history(
        asked.services.database,
        agent_id=query.agent_id,
        role=query.role,
        model=query.model,
        before=before,
        limit=query.limit + 1,
    )
    page = page_of(rows, query.limit, lambda row: cursor_of(row.at.isoformat(), row.batch_id, row.trajectory_id))
    return Page(redacted([_entry(row) for row in page.entries], page_text), page.next)


def _entry(row: RewardRow) -> RewardEntry:
    return RewardEntry(
        row.trajectory_id,
        row.agent_id,
        row.role,
        row.window_id,
        row.model,
        row.run_id,
        row.step,
        row.score,
        [
            Component(name, value)
            for name in ("validity", "decision", "weight", "pattern_weight", "advantage")
            if (value := getattr(row, name)) is not None
        ],
        row.at,
    )


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
