"""What a prompt is worth on training windows: a blind trial at decision points before those that are kept for the gate.

Replies to the prompt stand beside replies to the prompt that was logged, by the same model. What a prompt scores at a
point is the difference of the two, so that prompts of different trials can be compared; the replies to the logged
prompt are asked for once. Verdicts are cached and under the ceiling as everywhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import fmean

from data_bridge.agent_prompts import AgentTemplate
from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.quality import CheckedWindow, check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import end_of, start_of
from trainer.config.derived import window_rules
from trainer.config.prompt_commands import PromptsCommand
from trainer.config.training import ModelSettings
from trainer.evaluate.blind_trial import ModelPolicy, compare_policies
from trainer.evaluate.comparison import Contestant, TrialPlan
from trainer.evaluate.decision_points import DecisionPoint, decision_points
from trainer.evaluate.prompted import ByRole, PromptedPolicy
from trainer.evaluate.simulated_replay import load_replay
from trainer.evidence import Role
from trainer.inference.chat_models import Access, open_models
from trainer.inference.embedding import embedder_of
from trainer.judge.open import open_judge, open_writing
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.clock import clock
from trainer.ledger.prompts import MOST_KNOWN, list_prompts
from trainer.ledger.releases import incumbent_of
from trainer.progress import FailurePolicy
from trainer.prompts.arena import Arena, PointScore
from trainer.prompts.experience import Floats, checked_embedding
from trainer.prompts.material import PromptMaterial
from trainer.prompts.structure import StructuredPrompt
from trainer.prompts.writer import MutationWriter
from trainer.run.prompt_release import template_of
from trainer.types import Checkpoint, Completion, Judge
from trainer.world.agents import EXPLORER

_AT_ONCE = 32
"""Windows that are read together."""


async def training_windows(database: Database, settings: PromptsCommand, now: datetime) -> list[CheckedWindow]:
    """The newest usable windows before those that are kept for the gate and the embargo, oldest first: as many as have
    the decision points that are wanted, or all. NotEnoughData if there is none with a decision of the role."""
    rules = replace(window_rules(settings.windows), now=now)
    reader = WindowReader(database, rules)
    refs = await reader.discover()
    kept = refs[-settings.windows.eval_windows :]
    if not kept:
        raise NotEnoughData("There is no window to learn prompts on: `check_windows.py` says what is missing.")
    until = start_of(kept[0].window_id) - settings.windows.embargo
    earlier = [ref for ref in refs if start_of(ref.window_id) < until]
    found, points, usable = list[CheckedWindow](), 0, 0
    while earlier and points < settings.limits.prompt_points:
        newest, earlier = earlier[-_AT_ONCE:], earlier[:-_AT_ONCE]
        windows = [one async for one in reader.stream(newest) if end_of(one.window_id, one.hours) <= until]
        for checked in (check(one, rules) for one in reversed(windows)):
            if points >= settings.limits.prompt_points:
                break
            usable += bool(checked.usable)
            if own := _number_of_points(checked, settings):
                found.append(checked)
                points += own
    if not found:
        missing = "usable window" if not usable else f"decision {_of_role(settings.deed.prompt_role)}in the windows"
        raise NotEnoughData(
            f"There is no {missing} before the {len(kept)} that are kept for the gate: wait for more, or lower "
            "--eval-windows."
        )
    return found[::-1]


def _of_role(role: str) -> str:
    return f"of the role {role!r} " if role else ""


def _number_of_points(checked: CheckedWindow, settings: PromptsCommand) -> int:
    return len(
        decision_points(
            checked,
            purposes=settings.judge.purposes,
            max_points=settings.evaluation.eval_points,
            seed=settings.chance.seed,
            agents=agents_of([checked], settings.deed.prompt_role),
        )
    )


def agents_of(windows: Sequence[CheckedWindow], role: str) -> frozenset[str] | None:
    """The agents of a role in these windows; None, which is everybody, for the prompt of every role."""
    if not role:
        return None
    return frozenset(
        own.agent_id
        for checked in windows
        for own in checked.usable
        if role in (own.role, *(step.state.role for step in own.steps))
    )


@dataclass(frozen=True)
class AskedOnce:
    """A contestant that is in every trial: what it replied in the first one stands."""

    inner: Contestant
    known: dict[str, list[Completion]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.inner.name

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        if point.key not in self.known:
            found = await self.inner.replies(point, samples=samples, temperature=temperature, seed=seed)
            self.known[point.key] = found
        return self.known[point.key]


@dataclass(frozen=True)
class TrialJudges:
    """Judges a prompt by a blind trial against the logged one."""

    database: Database
    windows: Sequence[CheckedWindow]
    asked: ModelPolicy
    logged: AskedOnce
    judge_: Judge
    plan: TrialPlan
    role: str
    begun_by: Sequence[AgentTemplate]
    """The prompts that the log may have been begun by, from which the game's values are read."""
    known: dict[str, Sequence[PointScore]] = field(default_factory=dict)

    async def judge(self, prompt: StructuredPrompt) -> Sequence[PointScore]:
        if prompt.prompt_id not in self.known:
            self.known[prompt.prompt_id] = await self._judged(prompt)
        return self.known[prompt.prompt_id]

    async def _judged(self, prompt: StructuredPrompt) -> list[PointScore]:
        template = template_of(prompt)
        ours = PromptedPolicy(self.asked, ByRole({self.role: template}), self.begun_by, prompt.prompt_id)
        replay = await load_replay(self.database, [one.window.window_id for one in self.windows])
        sides: dict[Role, Contestant] = {Role.CANDIDATE: ours, Role.INCUMBENT: self.logged}
        result = await compare_policies(self.windows, sides, self.judge_, self.plan, replay)
        return [
            PointScore(
                at.point.key,
                fmean(one.score for one in at.replies[Role.CANDIDATE])
                - fmean(one.score for one in at.replies[Role.INCUMBENT]),
                " ".join(one.explanation for one in at.replies[Role.CANDIDATE]),
            )
            for at in result.compared
            if at.replies[Role.CANDIDATE] and at.replies[Role.INCUMBENT] and self._is_whose(at.point)
        ]

    def _is_whose(self, point: DecisionPoint) -> bool:
        return not self.role or point.role == self.role


async def replying_model(database: Database, model: ModelSettings) -> Checkpoint:
    """What agents use; before the first training that is the base model, on this machine."""
    if (used := await incumbent_of(database, model.model)) is not None:
        return used.checkpoint
    try:
        return await find_checkpoint(database, model.model, 0)
    except ConfigurationError:  # no training yet: the ledger knows no base model
        return Checkpoint(model.model, 0, model.base_model, "cpu", model.base_model)


@asynccontextmanager
async def open_arena(database: Database, settings: PromptsCommand, material: PromptMaterial) -> AsyncIterator[Arena]:
    now = await clock(database, settings.windows.until)
    windows = await training_windows(database, settings, now)
    checkpoint = await replying_model(database, settings.model)
    plan = TrialPlan(
        points_per_window=settings.evaluation.eval_points,
        samples=settings.evaluation.eval_samples,
        purposes=settings.judge.purposes,
        drawn=(EXPLORER,),
        failures=FailurePolicy(settings.judge.max_judge_failures),
        seed=settings.chance.seed,
        questions=0,
        agents=agents_of(windows, settings.deed.prompt_role),
    )
    kept = [one.template for one in await list_prompts(database.pool, limit=MOST_KNOWN)]
    away = database.gone_after
    access = Access(settings.common.home, settings.model, settings.promotion, settings.secrets, away)
    async with AsyncExitStack() as stack:
        models = await open_models(stack, access, {Role.CANDIDATE: checkpoint})
        judge = await stack.enter_async_context(open_judge(settings.judge, settings.secrets, database, "prompts"))
        embedder = embedder_of(settings.embedding, settings.secrets)
        stack.push_async_callback(embedder.close)

        async def embed(text: str) -> Floats:
            (vector,) = await embedder.embed([text])
            return checked_embedding(vector, settings.policy.policy_input)

        writing = await stack.enter_async_context(
            open_writing(settings.judge, settings.secrets, database, "prompts", beside=judge)
        )
        plain = ModelPolicy(models[Role.CANDIDATE])
        judges = TrialJudges(
            database, windows, plain, AskedOnce(plain), judge, plan, settings.deed.prompt_role, begun_by=kept
        )
        writer = None if writing is None else MutationWriter(writing)
        yield Arena(judges, embed, material, settings.limits, writer)
