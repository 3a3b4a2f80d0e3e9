"""A blind trial: every policy answers the same decision points, and a judge scores the replies anonymously.

Works in memory with any policies and any judge. When the judge fails, or a policy cannot be asked at a point (its
prompt is too long for the model, say), all policies lose that decision point; a failure is never a score.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from data_bridge.errors import BackendError, JudgeError, NotEnoughData
from data_bridge.models import ChatMessage, Step
from data_bridge.quality import CheckedWindow, Reason
from trainer.evaluate.comparison import Compared, Contestant, ScoredReply, TrialPlan, TrialResult
from trainer.evaluate.decision_points import (
    DecisionPoint,
    Replay,
    Replayed,
    alias_of,
    blind_order,
    decision_points,
    with_reply,
)
from trainer.evidence import Role
from trainer.faults import first_fault, may_be_a_rows
from trainer.inference.request import PromptRefused
from trainer.progress import FailureTally, counted
from trainer.types import ChatModel, Completion, Group, Judge, JudgedGroup, JudgeFailure

logger = logging.getLogger(__name__)

_ASKED_AT_ONCE = 64
_MAX_TEMPERATURE = 2.0  # what endpoints accept


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """A chat model that gets exactly the logged messages, without lessons."""

    model: ChatModel

    def messages_at(self, point: DecisionPoint) -> list[ChatMessage]:
        return point.messages

    @property
    def name(self) -> str:
        return self.model.name

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        return await self.model.chat(
            point.messages, n=samples, temperature=temperature, max_tokens=point.max_tokens, seed=seed
        )


@dataclass(frozen=True, slots=True)
class GreedyPolicy:
    """A chat model's most likely reply: one, whatever is asked for."""

    model: ChatModel

    @property
    def name(self) -> str:
        return f"{self.model.name}, greedy"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        return await self.model.chat(point.messages, n=1, temperature=0.0, max_tokens=point.max_tokens, seed=seed)


@dataclass(frozen=True, slots=True)
class LoggedPolicy:
    """The agents' logged replies: a baseline that every log has."""

    name: str = "as logged"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        return [Completion(text=point.call.response, model=self.name)] * samples


@dataclass(frozen=True, slots=True)
class OthersPolicy:
    """Always valid, picked at random, where no market can be replayed: what another agent did in the same window.

    One reply, whatever is asked for, drawn by the decision point; none if no other agent logged a valid one there.
    """

    windows: Sequence[CheckedWindow]
    purposes: Collection[str]
    name: str = "another agent's reply, at random"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        valid = [
            step.llm_calls[-1].response
            for checked in self.windows
            if checked.window.window_id == point.window_id
            for trajectory in checked.usable
            if trajectory.agent_id != point.trajectory.agent_id
            for step in trajectory.steps
            if step.llm_calls and step.llm_calls[-1].purpose in self.purposes and _was_valid(step)
        ]
        return [Completion(random.Random(seed).choice(sorted(valid)), model=self.name)] if valid else []


def _was_valid(step: Step) -> bool:
    done = step.action is not None and not step.action.is_pending and step.action.failure is None
    return done and bool(step.llm_calls[-1].response.strip())


@dataclass(frozen=True, slots=True)
class _Answer:
    """One reply to be judged."""

    role: Role
    completion: Completion
    replayed: Replayed | None
    alias: str


@dataclass(slots=True)
class _Asked:
    point: DecisionPoint
    answers: list[_Answer] = field(default_factory=list)
    fault: BaseException | None = None
    """Why a policy could not be asked here."""


async def compare_policies(
    windows: Sequence[CheckedWindow],
    policies: Mapping[Role, Contestant],
    judge: Judge,
    plan: TrialPlan,
    replay: Replay | None = None,
) -> TrialResult:
    """Ask, replay and judge. NotEnoughData without decision points, JudgeError if too many got no verdict."""
    points = [
        point
        for window in windows
        for point in decision_points(
            window,
            purposes=plan.purposes,
            max_points=plan.points_per_window,
            seed=plan.seed,
            agents=plan.agents,
        )
    ]
    if not points:
        raise NotEnoughData(
            f"No held-out window has an LLM call with purpose {', '.join(plan.purposes)}: check --purposes."
        )
    if not judge.identity.is_llm:
        points = _rebuildable(points, replay)
    asked = await _ask(points, policies, plan, replay, agents_temperature(windows, plan))
    faults = Counter(_reason(one.fault).value for one in asked if one.fault is not None)
    judged = await asyncio.gather(*(_judge(one, judge, plan) for one in asked if one.fault is None))
    compared = tuple(result for result, _ in judged if isinstance(result, Compared))
    failed = [result for result, _ in judged if isinstance(result, JudgeFailure)]
    left_out = Counter(failure.reason.value for failure in failed)
    tally = reduce(FailureTally.plus, failed, FailureTally(len(compared)))
    if not judged:
        raise BackendError(
            f"No policy could be asked at any of {counted(len(points), 'decision point')} of the held-out windows "
            f"({', '.join(f'{count} {reason}' for reason, count in faults.most_common())}): is the model's context "
            "long enough for the agents' prompts?"
        )
    if plan.failures.is_broken(tally, expected=len(judged)) or not compared:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
        raise JudgeError(
            f"The evaluation judge gave no verdict at {sum(left_out.values())} of "
            f"{counted(len(judged), 'decision point')} ({reasons}): check the log, then evaluate again."
        )
    return TrialResult(compared, len(points), dict(left_out + faults), sum(cost for _, cost in judged))


def _reason(fault: BaseException) -> Reason:
    return Reason.TOO_LONG if isinstance(fault, PromptRefused) else Reason.ROW_FAULT


def _rebuildable(points: Sequence[DecisionPoint], replay: Replay | None) -> list[DecisionPoint]:
    """The offline judge scores only the result of a decision, so it can judge only where that can be computed."""
    known = [point for point in points if replay is not None and replay.knows(point)]
    if not known:
        raise NotEnoughData(
            "The offline judge cannot evaluate these windows: the result of a different decision is only known "
            "in a simulated world, or where facts name the right action (docs/worlds.md); set EVAL_JUDGE_MODEL (or "
            "JUDGE_MODEL) to let an LLM judge the replies."
        )
    return known


def agents_temperature(windows: Sequence[CheckedWindow], plan: TrialPlan) -> float:
    """The temperature that most agents use: what a model will be worth to them is measured there.

    A reply that exploration chose has no temperature, whatever its row says.
    """
    if plan.temperature is not None:
        return plan.temperature
    logged: Counter[float] = Counter()
    for window in windows:
        for trajectory in window.usable:  # one vote each: an agent's temperature must not count by its calls
            sampled = (call for call in trajectory.llm_calls if call.author.model not in plan.drawn)
            own = Counter(call.temperature for call in sampled if call.purpose in plan.purposes)
            possible = [one for one, _ in own.most_common() if one is not None and 0 <= one <= _MAX_TEMPERATURE]
            logged.update(possible[:1])
    return logged.most_common(1)[0][0] if logged else 1.0


async def _ask(
    points: Sequence[DecisionPoint],
    policies: Mapping[Role, Contestant],
    plan: TrialPlan,
    replay: Replay | None,
    temperature: float,
) -> list[_Asked]:
    """Every policy's replies at every point. One policy at a time, so that a model answers in full batches."""
    asked = [_Asked(point) for point in points]
    slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def ask(one: _Asked, role: Role, policy: Contestant) -> None:
        try:
            async with slots:
                await answer(one, role, policy)
        except Exception as fault:
            if not may_be_a_rows(fault) and not isinstance(fault, PromptRefused):
                raise
            logger.info("%s could not be asked at %s: %s", policy.name, one.point.key, type(fault).__name__)
            one.fault = fault

    async def answer(one: _Asked, role: Role, policy: Contestant) -> None:
        seed = int(alias_of(one.point, "seed", 0, plan.seed)[:7], 16)
        completions = await policy.replies(one.point, samples=plan.samples, temperature=temperature, seed=seed)
        for sample, completion in enumerate(completions):
            replayed = replay.play(one.point, completion.text) if replay is not None else None
            alias = alias_of(one.point, role, sample, plan.seed)
            one.answers.append(_Answer(role, completion, replayed, alias))

    for role, policy in policies.items():
        try:
            async with asyncio.TaskGroup() as group:
                for one in asked:
                    if one.fault is None:
                        group.create_task(ask(one, role, policy))
        except BaseExceptionGroup as faults:
            raise first_fault(faults) from faults
        logger.info("%s %s answered at %d decision points", role, policy.name, len(points))
    return asked


async def _judge(asked: _Asked, judge: Judge, plan: TrialPlan) -> tuple[Compared | JudgeFailure, float]:
    """The scored replies at one point or the reason why there are none, and the cost of judging."""
    roles = list(dict.fromkeys(answer.role for answer in asked.answers))
    parts = _parts([[answer for answer in asked.answers if answer.role == role] for role in roles], plan.max_group)
    results = await asyncio.gather(
        *(judge.judge(_blind_group(asked.point, part, number)) for number, part in enumerate(parts))
    )
    cost = sum(result.cost_usd for result in results)
    failed = next((failure for result in results if (failure := _failure(result)) is not None), None)
    if failed is not None:
        return failed, cost
    scored: dict[Role, list[ScoredReply]] = {role: [] for role in roles}
    for part, result in zip(parts, results, strict=True):
        assert isinstance(result, JudgedGroup)
        for answer, reply in zip(part, _scored(part, result), strict=True):
            scored[answer.role].append(reply)
    return Compared(asked.point, {role: tuple(replies) for role, replies in scored.items()}), cost


def _parts(per_role: Sequence[Sequence[_Answer]], max_group: int) -> list[list[_Answer]]:
    """Groups for the judge: each has the same number of replies of all who sample, and the single replies in turn.

    A contestant with one reply so costs the judge that reply, not another group.
    """
    samples = max(map(len, per_role))
    sampled = [own for own in per_role if len(own) == samples]
    single = [answer for own in per_role if len(own) < samples for answer in own]

    def cut(width: int) -> list[list[_Answer]]:
        starts = range(0, samples, width)
        return [
            [answer for own in sampled for answer in own[start : start + width]] + single[number :: len(starts)]
            for number, start in enumerate(starts)
        ]

    widths = range(max(1, max_group // len(sampled)), 1, -1)
    return next((parts for parts in map(cut, widths) if max(map(len, parts)) <= max_group), cut(1))


def _failure(result: JudgedGroup | JudgeFailure) -> JudgeFailure | None:
    """Why the replies cannot be compared: all contestants or none are scored at a point, else it would favour one."""
    if isinstance(result, JudgeFailure):
        return result
    first = next(iter(result.left_out), None)
    return None if first is None else JudgeFailure(result.group, first.reason, first.detail)


def _blind_group(point: DecisionPoint, answers: Sequence[_Answer], number: int) -> Group:
    order = blind_order([answer.alias for answer in answers])
    return Group(
        group_id=f"evaluation/{point.key}/{number}",
        window_id=point.window_id,
        trajectories=tuple(
            with_reply(point, answers[index].completion.text, answers[index].replayed, alias=answers[index].alias)
            for index in order
        ),
        outcomes=point.outcomes,
        world=point.world,
        hours=point.trajectory.window_hours if point.world.version else 1,
    )


def _scored(answers: Sequence[_Answer], judged: JudgedGroup) -> list[ScoredReply]:
    """Replies with their scores. Identical replies are the same decision: they share their mean score."""
    verdicts = {verdict.trajectory_id: verdict for verdict in judged.verdicts}
    same: dict[str, list[float]] = {}
    for answer in answers:
        same.setdefault(answer.completion.text, []).append(verdicts[answer.alias].score)
    return [
        ScoredReply(
            text=answer.completion.text,
            score=sum(same[answer.completion.text]) / len(same[answer.completion.text]),
            explanation=verdicts[answer.alias].explanation,
            pnl=answer.replayed.pnl if answer.replayed is not None else None,
            is_valid=answer.replayed.is_valid if answer.replayed is not None else None,
            is_error=_is_error(answer),
            is_blocked=answer.replayed.is_blocked if answer.replayed is not None else None,
            token_ids=answer.completion.token_ids,
        )
        for answer in answers
    ]


def _is_error(answer: _Answer) -> bool:
    """With a replay: not an action. Without one, only an empty or truncated reply can be detected."""
    if answer.replayed is not None:
        return not answer.replayed.is_valid and not answer.replayed.is_blocked
    return not answer.completion.text.strip() or answer.completion.finish_reason == "length"
