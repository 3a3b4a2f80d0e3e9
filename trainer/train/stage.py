"""Gradient steps, one after the other: prepare a batch, store it, train it once, record the result.

The order makes a crash harmless. The composition is stored before anything leaves this process; the backend's receipt
is stored before its job is followed; the result is recorded in one transaction once the checkpoint is durable. A fault
leaves the batch as it is: the next start asks the backend what happened to it.
"""

from __future__ import annotations

import asyncio
import bisect
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, pstdev
from typing import Any

from data_bridge.authorship import Lineage, Served, plain_names
from data_bridge.errors import BackendError
from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.abilities import abilities_of
from trainer.config.training import BaselineName, StepLimitSettings
from trainer.faults import RowFaults
from trainer.ledger.batch_records import BatchRecord
from trainer.ledger.model_lock import ModelLock
from trainer.ledger.runs import Ledger
from trainer.progress import Progress, View, counted
from trainer.rewards import Baseline, RewardHistory
from trainer.train.collapse import AnswerTally
from trainer.train.pattern_weights import pattern_weights
from trainer.train.recovery import recover
from trainer.train.replay import ReplayedGroups, StepGroups
from trainer.train.selection import advantages, spread
from trainer.train.stored_groups import record_of_group
from trainer.train.thresholds import parse_thresholds, stop_collapse
from trainer.train.tracking import Tracker
from trainer.types import Batch, Checkpoint, JudgedGroup, PreparedBatch, StepResult, TrainingBackend


@dataclass
class TrainStage:
    """Owns the model's steps for one run."""

    limits: StepLimitSettings
    model: str
    scale_rewards: bool
    max_staleness: int
    run_id: str
    backend: TrainingBackend
    ledger: Ledger
    lock: ModelLock
    tracker: Tracker
    view: View
    progress: Progress
    replay: ReplayedGroups | None = None
    whole_step: int = 0
    """Groups of a step; fewer are trained at their share of the learning rate. 0: at all of it."""
    baseline: BaselineName = "off"
    base_names: tuple[str, ...] = ()
    """Names of the base model: under them, agents run step 0 of the trained one."""
    counterfactual: Callable[[Sequence[JudgedGroup]], Awaitable[dict[str, Baseline]]] | None = None
    """With --baseline leave-one-out: what HOLD would have scored in the place of each member."""
    pattern_weight: float = 1.0
    """Most that a group counts that shows an error pattern; 1: patterns change no step."""
    pattern_lag: int = 0
    """Steps back from which error patterns are counted."""
    left_out: Counter[Reason] = field(default_factory=Counter)
    """Why trajectories of judged groups had no trainable tokens."""

    def __post_init__(self) -> None:
        self._thresholds = parse_thresholds(self.limits.stop_on)
        # One use of this machine's model at a time, unless it is trained elsewhere. What is replayed depends on what
        # the step before it trained.
        trains_here = abilities_of(self.backend.name).trains_here
        self._prepares_ahead = not trains_here and self.max_staleness > 0 and self.replay is None
        self._without_signal: tuple[str, ...] = ()
        self._undo = parse_thresholds(self.limits.undo_on, "--undo-on")
        self._idle = asyncio.Event()
        self._idle.set()
        self._cost_reported = self.progress.cost_usd
        self._served: tuple[Served, ...] | None = None
        self._answers = AnswerTally(self._lineage())

    @property
    def has_enough_steps(self) -> bool:
        return 0 < self.limits.max_steps <= self.progress.steps

    def _lineage(self) -> Lineage:
        return Lineage(self.model, plain_names(self.base_names), self._served)

    async def prepare(self, step: StepGroups) -> PreparedBatch | None:
        """A batch for the current policy, its empty places filled; None if nothing in it can be trained."""
        if not self._prepares_ahead:
            await self._idle.wait()
            self._idle.clear()  # until this batch is trained, so that the next is prepared with the new policy
        replayed = () if self.replay is None else await self.replay.fill(step.empty)
        self._without_signal = step.without_signal
        prepared = await self._prepare(uuid.uuid4().hex, (*step.groups, *replayed))
        if prepared.trainable_tokens == 0:
            self._idle.set()
            await self._leave_out(prepared, list(prepared.batch.groups))
            return None
        return prepared

    async def step(self, prepared: PreparedBatch) -> None:
        """Make one gradient step and record it."""
        try:
            await self._step(prepared)
        finally:
            self._idle.set()

    async def _prepare(
        self, batch_id: str, groups: Sequence[JudgedGroup], untrained: tuple[Exclusion, ...] = ()
    ) -> PreparedBatch:
        if self._served is None:
            self._served = await self.ledger.served(self.model)
            self._answers.lineage = self._lineage()
        share = min(1.0, len(groups) / self.whole_step) if self.whole_step else 1.0
        named = (batch_id, self.model, self.progress.step, tuple(groups), untrained)
        batch = Batch(*named, self._served, share, await self._baselines(groups))
        if self.pattern_weight > 1:
            trained = await self.ledger.observed_since(self.model, self.progress.step - self.pattern_lag)
            weights = pattern_weights(groups, trained, self.pattern_weight)
            batch = replace(batch, emphasis=weights.of_members(groups), most_emphasis=self.pattern_weight)
        return await self.backend.prepare(batch)

    async def _baselines(self, groups: Sequence[JudgedGroup]) -> dict[str, Baseline]:
        """What is usual for each member's agent or role, by what was trained before; or what HOLD would have scored."""
        if self.baseline == "off":
            return {}
        if self.counterfactual is not None:
            return await self.counterfactual(groups)
        means, usual = await self.ledger.running_means(self.model)
        members = [one for judged in groups for one in judged.group.trajectories]
        by_agent = self.baseline == "agent"
        whose = {
            one.trajectory_id: f"agent:{one.agent_id}" if by_agent else f"role:{one.role or ''}" for one in members
        }
        return {name: Baseline(key, means.get(key, usual)) for name, key in whose.items()}

    async def _step(self, prepared: PreparedBatch) -> None:
        """Rows that make the step fail are excluded, and it is made without them."""
        rest: PreparedBatch | None = await self._fresh(prepared)
        while rest is not None:
            rest = await self._train(rest)

    async def _train(self, prepared: PreparedBatch) -> PreparedBatch | None:
        """Train and record ``prepared``; returns what is left to train if some of its rows are at fault."""
        trained, empty = split_trainable(prepared)
        if not trained or prepared.trainable_tokens == 0:
            await self._leave_out(prepared, list(prepared.batch.groups))
            return None
        await self._leave_out(prepared, empty)
        record = record_of(prepared, self.run_id, await self.ledger.next_batch_number(self.run_id))
        record = replace(record, known_metrics=self._known(record, trained))
        await self.ledger.batch_prepared(self.lock, record)

        self.progress.doing("training", f"batch {record.number}")
        started = time.monotonic()
        try:
            result = await self.backend.train(
                prepared, on_submitted=partial(self.ledger.batch_submitted, self.lock, record.batch_id)
            )
        except RowFaults as found:
            return await self._without(prepared, found)
        seconds = time.monotonic() - started
        if result.trainable_tokens == 0:
            raise BackendError(
                f"Step {result.checkpoint.step} trained no token although {prepared.trainable_tokens} were sent; "
                "nothing is counted as trained: check the backend's log, then run again."
            )
        metrics: dict[str, Any] = {
            **metrics_of_step(result, record.known_metrics),
            "seconds": seconds,
            "tokens_per_second": result.trainable_tokens / seconds if seconds else 0.0,
        }
        await self.ledger.batch_trained(self.lock, record, result, metrics)
        self._count(record.exclusions)
        self._cost_reported += record.known_metrics["cost_usd"]
        self._report(metrics, result.checkpoint)
        await self.recover()
        return None

    async def recover(self) -> None:
        """Go back if the newest step was trained on what a collapsed model said."""
        if await recover(self.backend, self.ledger, self.model, self.run_id, self._undo, self.view):
            self._answers.clear()

    async def _without(self, prepared: PreparedBatch, found: RowFaults) -> PreparedBatch:
        """The batch without the rows that made its step fail: excluded at once, so that a crash forgets none."""
        batch = prepared.batch
        known = {one.trajectory_id for one in batch.untrained}
        members = [one for judged in batch.groups for one in judged.group.trajectories]
        faulty = [
            exclusion_of(one, Reason.ROW_FAULT, found.faults[one.trajectory_id])
            for one in members
            if one.trajectory_id in found.faults.keys() - known
        ]
        if not faulty:
            raise found
        await self.ledger.batch_failed(self.lock, batch.batch_id, str(found))
        await self.ledger.exclude(self.run_id, faulty)
        trained, _ = split_trainable(prepared)
        return await self._prepare(uuid.uuid4().hex, trained, (*batch.untrained, *faulty))

    def _known(self, record: BatchRecord, trained: Sequence[JudgedGroup]) -> dict[str, Any]:
        """What is known about the step beforehand: stored with the batch, in case this process does not see its end.

        Replayed groups are old: they say nothing about how the policy plays now.
        """
        fresh = [one for one in trained if one.use == 1] or trained
        replayed, without_signal = len(trained) - len(fresh), self._without_signal
        replays = {} if self.replay is None else {"replayed": replayed, "without_signal": without_signal}
        return {
            **metrics_of_batch(fresh, self._lineage(), record.policy_step, scale=self.scale_rewards),
            **self._answers.add(fresh),
            **replays,
            **({} if self.pattern_weight == 1 else metrics_of_patterns(record.history)),
            "left_out": len(record.exclusions),
            "staleness": self.progress.step - record.policy_step,
            "rescored": self.progress.rescored,
            "cost_usd": self.progress.cost_usd - self._cost_reported,
        }

    async def _fresh(self, prepared: PreparedBatch) -> PreparedBatch:
        """The batch, scored again if the policy has changed too much since it was prepared."""
        if self.progress.step - prepared.batch.policy_step <= self.max_staleness:
            return prepared
        self.progress.rescored += 1
        return await self._prepare(prepared.batch.batch_id, prepared.batch.groups, prepared.batch.untrained)

    async def _leave_out(self, prepared: PreparedBatch, groups: Sequence[JudgedGroup]) -> None:
        """Record the reasons for groups of which nothing can be trained; their trajectories do not count as used."""
        names = {one.trajectory_id for judged in groups for one in judged.group.trajectories}
        excluded = [one for one in prepared.exclusions if one.trajectory_id in names]
        if excluded:
            await self.ledger.exclude(self.run_id, excluded)
            await self.ledger.drop_carried(self.model, names)
            self._count(excluded)

    def _count(self, exclusions: Sequence[Any]) -> None:
        self.left_out.update(one.reason for one in exclusions)

    def _report(self, metrics: dict[str, Any], checkpoint: Checkpoint) -> None:
        progress, plain = self.progress, plain_numbers(metrics)
        progress.steps += 1
        progress.step = int(metrics["step"])
        progress.trainable_tokens += int(metrics["trainable_tokens"])
        progress.train_seconds += float(metrics["seconds"])
        progress.pattern_groups += int(plain.get("pattern_groups", 0))
        progress.latest = plain
        progress.newest = checkpoint
        progress.doing("judging", progress.window)
        self.tracker.log(progress.step, plain)
        self.view.say(_sentence(plain))
        stop_collapse(self._thresholds, plain, checkpoint)


def _sentence(metrics: dict[str, float]) -> str:
    parts = [f"step {metrics['step']:.0f}:"]
    names = {"reward": "reward", "loss": "loss", "kl": "KL", "entropy": "entropy"}
    parts += [f"{label} {metrics[name]:.3f}" for name, label in names.items() if name in metrics]
    parts.append(f"{counted(round(metrics['trainable_tokens']), 'token')} in {metrics['seconds']:.1f} s")
    if metrics.get("pattern_groups"):
        weighted, weight = counted(round(metrics["pattern_groups"]), "group"), metrics["pattern_weight"]
        parts.append(f"{weighted} with error patterns counted up to {weight:.1f} times")
    return "  ".join(parts)


def metrics_of_patterns(history: RewardHistory | None) -> dict[str, float]:
    """How many groups counted more by error patterns, and the largest and the smallest weight of a group."""
    members = () if history is None else history.members
    weights = {one.place: one.pattern_weight for one in members}
    marked = {one.place for one in members if one.graded.emphasis > 1}
    return {
        "pattern_groups": len(marked),
        "pattern_weight": max(weights.values(), default=1.0),
        "pattern_weight_least": min(weights.values(), default=1.0),
    }


def split_trainable(prepared: PreparedBatch) -> tuple[list[JudgedGroup], list[JudgedGroup]]:
    """The groups that have something to train, and those that have nothing left."""
    gone = {exclusion.trajectory_id for exclusion in prepared.exclusions}
    trained: list[JudgedGroup] = []
    empty: list[JudgedGroup] = []
    for judged in prepared.batch.groups:
        survives = any(member.trajectory_id not in gone for member in judged.group.trajectories)
        (trained if survives else empty).append(judged)
    return trained, empty


def record_of(prepared: PreparedBatch, run_id: str, number: int) -> BatchRecord:
    """What is stored for ``prepared``: its trained groups with all their members."""
    batch = prepared.batch
    trained, _ = split_trainable(prepared)
    groups = tuple(record_of_group(judged) for judged in trained)
    inside = {verdict.trajectory_id for group in groups for verdict in group.verdicts}
    exclusions = tuple(exclusion for exclusion in prepared.exclusions if exclusion.trajectory_id in inside)
    return BatchRecord(
        *(batch.batch_id, run_id, batch.model, number, batch.policy_step, groups, exclusions),
        prepared.trainable_tokens,
        history=prepared.history,
    )


HISTOGRAM_EDGES = (-0.5, -0.25, -0.1, -0.02, 0.02, 0.1, 0.25, 0.5)
"""Bounds of the bins of the advantage histogram; the first and the last bin are open."""


def histogram(values: Sequence[float]) -> dict[str, list[float]]:
    counts = [0] * (len(HISTOGRAM_EDGES) + 1)
    for value in values:
        counts[bisect.bisect_right(HISTOGRAM_EDGES, value)] += 1
    return {"edges": list(HISTOGRAM_EDGES), "counts": [float(count) for count in counts]}


def metrics_of_batch(
    groups: Sequence[JudgedGroup], lineage: Lineage, policy_step: int, *, scale: bool
) -> dict[str, Any]:
    """Rewards, advantages, how well the judge agreed with itself, and how old the playing policy was."""
    scores = [judged.scores for judged in groups]
    flat = [score for group in scores for score in group]
    of_groups = [one for group in scores for one in advantages(group, scale=scale)]
    ages = sampling_ages(groups, lineage, policy_step)
    return {
        "groups": len(groups),
        "trajectories": len(flat),
        "reward": fmean(flat),
        "reward_std": pstdev(flat),
        "reward_spread": fmean(map(spread, scores)),
        "advantage_std": pstdev(of_groups),
        "advantage_histogram": histogram(of_groups),
        "judge_order_spread": fmean(2 * verdict.uncertainty for judged in groups for verdict in judged.verdicts),
        "sampled_steps_ago": fmean(ages) if ages else None,
    }


def metrics_of_step(result: StepResult, known: Mapping[str, Any]) -> dict[str, Any]:
    """What the backend reports about the step, and what was ``known`` about its batch before."""
    return {**result.metrics, **known, "step": result.checkpoint.step, "trainable_tokens": result.trainable_tokens}


def sampling_ages(groups: Sequence[JudgedGroup], lineage: Lineage, policy_step: int) -> list[int]:
    """How many steps before ``policy_step`` the trained model wrote each logged reply, where its step can be told."""
    authors = (
        lineage.author(call, one) for judged in groups for one in judged.group.trajectories for call in one.llm_calls
    )
    return [policy_step - one.step for one in authors if one.model == lineage.trainee and one.step is not None]


def plain_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of ``metrics``: for views, thresholds and tracking."""
    return {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
