"""Builders for whole runs on a real Postgres: starts of the command one after the other, and judges that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.quality import Reason
from tests.builders import NOW
from tests.fakes.training_backend import FakeBackend
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.judge.open import open_judge
from trainer.ledger.model_lock import hold
from trainer.ledger.runs import Ledger
from trainer.plan.plan import in_training_order as ordered
from trainer.progress import Progress, Silent
from trainer.run import training_run
from trainer.run.session import Session
from trainer.run.train import plan_log, train_on_log
from trainer.run.training_run import TrainingRun
from trainer.train.settle import mend
from trainer.types import Group, JudgedGroup, JudgeFailure, PlannedWindow


class World:
    """A database with windows, and sessions that train on them one after the other, as restarts would."""

    def __init__(self, database: Database, home: Path) -> None:
        self.database = database
        self.home = home
        self.ledger = Ledger(database, home)

    def settings(self, **values: Any) -> TrainSettings:
        usual: dict[str, Any] = {"home": self.home, "until": NOW.isoformat(), "groups_per_step": 2}
        return settings_from(TrainSettings, **(usual | values))

    @asynccontextmanager
    async def session(self, settings: TrainSettings, backend: FakeBackend) -> AsyncIterator[Session]:
        async with hold(self.database, settings.model.model) as lock:
            await mend(self.ledger, lock, backend, settings.training.stop_on)
            yield Session(settings, self.database, self.ledger, lock, backend, "tiny", Silent(), asyncio.Event())

    async def train(
        self,
        backend: FakeBackend,
        *,
        stop_after: int | None = None,
        then: Callable[[TrainingRun], Awaitable[None]] | None = None,
        **values: Any,
    ) -> TrainingRun:
        """One start of the command: takes up what is unfinished. ``then`` stands for the evaluation."""
        settings = self.settings(**values)
        async with self.session(settings, backend) as session:
            if stop_after is not None:
                backend.on_step = lambda step: session.stop.set() if step >= stop_after else None
            if stop_after == 0:
                session.stop.set()
            plan = await plan_log(settings, self.database, self.ledger)
            run, _ = await train_on_log(session, plan, then or _not_evaluated)
            return run

    async def used(self) -> dict[str, int]:
        """How often each trajectory is in a durable batch."""
        rows = await self.database.pool.fetch(
            "SELECT trajectory_id, count(*) AS n FROM hindsight.batch_trajectories"
            " JOIN hindsight.batches USING (batch_id) WHERE state = 'trained' GROUP BY 1"
        )
        return {row["trajectory_id"]: row["n"] for row in rows}


async def _not_evaluated(run: TrainingRun) -> None: ...


class BrokenJudge:
    """Fails for the windows it is told, for the reason it is told."""

    def __init__(self, inner: Any, failing: set[str], reason: Reason) -> None:
        self.inner, self.failing, self.reason = inner, failing, reason

    @property
    def identity(self) -> Any:
        return self.inner.identity

    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        if group.window_id in self.failing:
            return JudgeFailure(group, self.reason, "503 from the endpoint", 0.01)
        verdict: JudgedGroup | JudgeFailure = await self.inner.judge(group)
        return verdict

    async def close(self) -> None: ...


def break_judge(monkeypatch: pytest.MonkeyPatch, failing: set[str], reason: Reason = Reason.JUDGE_UNAVAILABLE) -> None:
    @asynccontextmanager
    async def opened(*arguments: Any, **options: Any) -> AsyncIterator[BrokenJudge]:
        async with open_judge(*arguments, **options) as judge:
            yield BrokenJudge(judge, failing, reason)

    monkeypatch.setattr(training_run, "open_judge", opened)


@dataclass
class Said:
    """A view that remembers what it was told to say."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


def in_training_order(window_ids: Sequence[str], seed: int = 0) -> list[str]:
    """``window_ids`` as a run trains them."""
    return [one.window_id for one in ordered([PlannedWindow(name, 1, ()) for name in window_ids], seed)]
