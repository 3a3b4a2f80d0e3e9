"""Scores one trajectory or one task's result on demand: the judge of the training, its cache, and a ceiling of cost.

A trajectory of a window is judged in its group, beside the other agents of that hour, exactly as a training would ask:
what one has paid for the other finds in the ledger. A result without peers is judged alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

import msgspec

from data_bridge.database import Database
from data_bridge.errors import JudgeError, NotEnoughData
from data_bridge.ingest import SentTrajectory, read_sent
from data_bridge.lookup import read_trajectories
from data_bridge.models import Action, AgentTrajectory, LLMCall, Step, Window, WindowOutcomes
from data_bridge.quality import Reason, Rules, check
from data_bridge.reader import WindowReader
from data_bridge.worlds.load import load_world
from trainer.config.derived import window_rules
from trainer.config.sections import GroupingSettings, JudgeSecrets, JudgeSettings, WindowSettings
from trainer.judge.open import open_judge
from trainer.ledger.clock import clock
from trainer.ledger.rewards_asked import spent_today
from trainer.plan.grouping import form_groups
from trainer.types import Group, JudgedGroup
from trainer.workers.judging import as_unused

_SEED = 0  # as in judge_windows, so that both share their verdicts
_BUSY = frozenset({Reason.JUDGE_UNAVAILABLE, Reason.JUDGE_BAD_REPLY})


@dataclass(frozen=True, slots=True)
class ScoreComponent:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class GivenScore:
    """The judge's answer about one trajectory."""

    score: float
    explanation: str
    components: tuple[ScoreComponent, ...]
    cached: bool
    cost: float
    """US dollars, of this request."""
    judge: str
    compared_with: int
    """Other trajectories that it was judged beside; 0: alone."""


@dataclass(frozen=True, slots=True)
class RewardScorer:
    """Opens the judge for each request; the ledger remembers what was paid for."""

    database: Database
    judge: JudgeSettings
    secrets: JudgeSecrets
    windows: WindowSettings
    groups: GroupingSettings

    async def of_logged(self, trajectory_id: str, *, rubric: str | None, max_cost: float | None) -> GivenScore:
        """NotEnoughData if there is no such row, or it cannot be compared."""
        max_bytes = int(self.windows.max_trajectory_mb * 1_000_000)
        found = [one async for one in read_trajectories(self.database, [trajectory_id], max_bytes)]
        if not found:
            raise NotEnoughData(f"There is no trajectory {trajectory_id!r} that can be read.")
        rules = window_rules(self.windows, now=await clock(self.database, self.windows.until))
        window = await WindowReader(self.database, rules).read(found[0].window_id)
        if window is None:
            raise NotEnoughData(f"The window of {trajectory_id!r} has no rows.")
        return await self._beside_others(as_unused(window), rules, trajectory_id, rubric, max_cost)

    async def of_given(self, sent: SentTrajectory, *, rubric: str | None, max_cost: float | None) -> GivenScore:
        """Judge a row that is not stored, beside the others of its window, in the place of its own agent's row.

        Alone if the log has nothing of that window. NotEnoughData if it cannot be read or compared.
        """
        now = await clock(self.database, self.windows.until)
        rules = window_rules(self.windows, now=now)
        given = read_sent(sent, now)
        window = await WindowReader(self.database, rules).read(given.window_id)
        if window is None:
            group = Group(f"console/{given.trajectory_id}", given.window_id, (given,), WindowOutcomes(), rules.world)
            return await self._judged(group, given.trajectory_id, rubric, max_cost)
        others = [
            one
            for one in as_unused(window).trajectories
            if given.trajectory_id != one.trajectory_id and given.agent_id != one.agent_id
        ]
        joined = msgspec.structs.replace(window, trajectories=(*others, given))
        return await self._beside_others(joined, rules, given.trajectory_id, rubric, max_cost)

    async def _beside_others(
        self, window: Window, rules: Rules, trajectory_id: str, rubric: str | None, max_cost: float | None
    ) -> GivenScore:
        checked = check(window, rules)
        grouped = form_groups(checked, self.groups, _SEED)
        for group in grouped.groups:
            if any(one.trajectory_id == trajectory_id for one in group.trajectories):
                return await self._judged(group, trajectory_id, rubric, max_cost)
        reasons = {one.trajectory_id: one.reason.value for one in (*checked.excluded, *grouped.excluded)}
        reason = reasons.get(trajectory_id, "not among the window's rows")
        raise NotEnoughData(f"{trajectory_id!r} cannot be judged: {reason}.")

    async def of_result(
        self, task: str, result: str, action: str | None, *, rubric: str | None, max_cost: float | None
    ) -> GivenScore:
        """Judge what a model answered to a task, alone."""
        now = datetime.now(UTC)
        content = hashlib.sha256(f"{task}\0{result}\0{action}".encode()).hexdigest()
        call = LLMCall(model="", response=result, user_prompt=task, purpose=self.judge.purposes[0])
        deed = Action(action_type=action or "answer", parameters={}, success=True)
        steps = [Step(step_number=0, llm_calls=[call], action=deed)]
        size = len(msgspec.json.encode(steps))
        name = f"result-{content[:24]}"
        trajectory = AgentTrajectory(name, "asked", f"{now:%Y-%m-%dT%H}:00", 1, now, now, steps, content, size)
        group = Group(
            f"console/{name}", trajectory.window_id, (trajectory,), WindowOutcomes(), load_world(self.windows.world)
        )
        return await self._judged(group, name, rubric, max_cost)

    async def _judged(self, group: Group, name: str, rubric: str | None, max_cost: float | None) -> GivenScore:
        run_id, spent = await spent_today(self.database)
        ceilings = [self.judge.max_cost, None if max_cost is None else spent + max_cost]
        known = [one for one in ceilings if one is not None]
        changed = {"max_cost": min(known) if known else None, **({} if rubric is None else {"rubric": rubric})}
        settings = self.judge.model_copy(update=changed)
        async with open_judge(settings, self.secrets, self.database, run_id) as judge:
            answer = await judge.judge(group)
        if not isinstance(answer, JudgedGroup):
            said = f"The judge gave no verdict ({answer.reason.value}): {answer.detail}."
            raise JudgeError(said) if answer.reason in _BUSY else NotEnoughData(said)
        own = [verdict for verdict in answer.verdicts if verdict.trajectory_id == name]
        if not own:
            reason = next((one.reason.value for one in answer.left_out if one.trajectory_id == name), "left out")
            raise NotEnoughData(f"{name!r} cannot be judged: {reason}.")
        mean = fmean(verdict.score for verdict in answer.verdicts)
        return GivenScore(
            own[0].score,
            own[0].explanation,
            (
                ScoreComponent("group_mean", mean),
                ScoreComponent("above_group_mean", own[0].score - mean),
                ScoreComponent("uncertainty", own[0].uncertainty),
            ),
            answer.cached,
            answer.cost_usd,
            answer.identity.judge,
            len(answer.verdicts) - 1,
        )
