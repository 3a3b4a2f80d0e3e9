"""The policy learns on training windows: episodes of mutations, each worth its judged score minus its parent's.

A prompt is judged by a blind trial at decision points of windows before those that are kept for the gate: replies to it
beside replies to the prompt that was logged, by the same model. What a prompt scores at a point is the difference of
the two, so that prompts of different trials can be compared; verdicts are cached and under the ceiling as everywhere.
Experience and checkpoints are those of the service: killed anywhere, the same command goes on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import fmean
from typing import TYPE_CHECKING

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
from trainer.evaluate.prompted import ByRole, PromptedPolicy
from trainer.evaluate.simulated_replay import load_replay
from trainer.evidence import Role
from trainer.inference.chat_models import Access, open_models
from trainer.inference.embedding import embedder_of
from trainer.judge.open import open_judge, open_writing
from trainer.ledger import policy as ledger
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.clock import clock
from trainer.ledger.prompts import keep_prompt
from trainer.ledger.releases import incumbent_of
from trainer.progress import FailurePolicy
from trainer.prompts.arena import Arena, PointScore
from trainer.prompts.compare import compare
from trainer.prompts.experience import Experience, Floats, UpdateReport, checked_embedding
from trainer.prompts.learn import ExperienceStore, learn
from trainer.prompts.material import PromptMaterial
from trainer.prompts.structure import StructuredPrompt
from trainer.prompts.writer import MutationWriter
from trainer.run.policy_desk import NAME, experience_of, losses_of
from trainer.run.prompt_release import new_prompt, template_of
from trainer.types import ChatModel, Checkpoint, Judge
from trainer.world.agents import EXPLORER

if TYPE_CHECKING:
    from trainer.prompts.policy import PromptPolicy


async def training_windows(database: Database, settings: PromptsCommand, now: datetime) -> list[CheckedWindow]:
    """The newest usable windows before those that are kept for the gate and the embargo, oldest first."""
    rules = replace(window_rules(settings.windows), now=now)
    reader = WindowReader(database, rules)
    refs = await reader.discover()
    kept = refs[-settings.windows.eval_windows :]
    if not kept:
        raise NotEnoughData("There is no window to learn prompts on: `check_windows.py` says what is missing.")
    until = start_of(kept[0].window_id) - settings.windows.embargo
    earlier = [ref for ref in refs if start_of(ref.window_id) < until]
    wanted = -(-settings.limits.prompt_points // settings.evaluation.eval_points)
    found = [
        checked
        async for window in reader.stream(earlier[-wanted:])
        if end_of(window.window_id, window.hours) <= until and (checked := check(window, rules)).usable
    ]
    if not found:
        raise NotEnoughData(
            f"There is no usable window before the {len(kept)} that are kept for the gate: wait for more, or lower "
            "--eval-windows."
        )
    return found


@dataclass(frozen=True)
class TrialJudges:
    """Judges a prompt by a blind trial against the logged one."""

    database: Database
    windows: Sequence[CheckedWindow]
    model: ChatModel
    judge_: Judge
    plan: TrialPlan
    role: str
    known: dict[str, Sequence[PointScore]]

    async def judge(self, prompt: StructuredPrompt) -> Sequence[PointScore]:
        if prompt.prompt_id not in self.known:
            self.known[prompt.prompt_id] = await self._judged(prompt)
        return self.known[prompt.prompt_id]

    async def _judged(self, prompt: StructuredPrompt) -> list[PointScore]:
        template, plain = template_of(prompt), ModelPolicy(self.model)
        ours = PromptedPolicy(plain, ByRole({self.role: template}), [template], prompt.prompt_id)
        replay = await load_replay(self.database, [one.window.window_id for one in self.windows])
        sides: dict[Role, Contestant] = {Role.CANDIDATE: ours, Role.INCUMBENT: plain}
        result = await compare_policies(self.windows, sides, self.judge_, self.plan, replay)
        return [
            PointScore(
                at.point.key,
                fmean(one.score for one in at.replies[Role.CANDIDATE])
                - fmean(one.score for one in at.replies[Role.INCUMBENT]),
                " ".join(one.explanation for one in at.replies[Role.CANDIDATE]),
            )
            for at in result.compared
            if at.replies[Role.CANDIDATE] and at.replies[Role.INCUMBENT]
        ]


async def _replying(database: Database, model: ModelSettings) -> Checkpoint:
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
    checkpoint = await _replying(database, settings.model)
    plan = TrialPlan(
        points_per_window=settings.evaluation.eval_points,
        samples=settings.evaluation.eval_samples,
        purposes=settings.judge.purposes,
        drawn=(EXPLORER,),
        failures=FailurePolicy(settings.judge.max_judge_failures),
        seed=settings.chance.seed,
        questions=0,
    )
    access = Access(settings.common.home, settings.model, settings.promotion, settings.secrets)
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
        role = settings.deed.prompt_role
        judges = TrialJudges(database, windows, models[Role.CANDIDATE], judge, plan, role, {})
        writer = None if writing is None else MutationWriter(writing)
        yield Arena(judges, embed, material, settings.limits, writer)


class LedgerStore(ExperienceStore):
    """The ledger as the learning loop sees it. The loop counts updates of a policy; the ledger's versions also count
    what was loaded, so the two numbers are kept apart here."""

    def __init__(self, database: Database, settings: PromptsCommand, policy: str = NAME) -> None:
        self._database, self._settings, self._policy = database, settings, policy
        self._version = 0
        self._acting: PromptPolicy | None = None
        self._names: dict[int, str] = {}

    async def add(self, experiences: Sequence[Experience]) -> None:
        for one in experiences:
            text = f"{self._version}\x1f{one.episode}\x1f{one.step}"
            sent = ledger.SentExperience(
                f"learn {hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}",
                self._version,
                one.episode,
                one.step,
                struct.pack(f"<{len(one.embedding)}f", *one.embedding),
                tuple(map(bool, one.mask)),
                one.action,
                one.reward,
                one.done,
            )
            await ledger.keep_experience(self._database, self._policy, sent)

    async def waiting(self, version: int) -> Sequence[Experience]:
        assert self._acting is not None
        sent = await ledger.experience_to_learn(self._database.pool, self._policy, self._version)
        found = [replace(one, version=version) for one in experience_of(self._acting, sent)]
        self._names = {id(one): each.experience_id for one, each in zip(found, sent, strict=True)}
        self._found = found  # as long as their ids are looked up
        return found

    async def checkpoint(self) -> bytes | None:
        from trainer.prompts.policy import PromptPolicy

        kept = await ledger.newest_checkpoint(self._database.pool, self._policy)
        if kept is None:
            await ledger.begin_policy(self._database, self._policy, PromptPolicy(self._settings.policy).to_bytes())
            kept = await ledger.newest_checkpoint(self._database.pool, self._policy)
        assert kept is not None
        self._version = kept.version
        self._acting = PromptPolicy.from_bytes(kept.weights, self._settings.policy)
        return kept.weights

    async def learnt(self, experiences: Sequence[Experience], report: UpdateReport, checkpoint: bytes) -> None:
        ids = [self._names[id(one)] for one in experiences]
        losses = losses_of(report, self._version + 1)
        done = await ledger.commit_update(self._database, self._policy, self._version, checkpoint, losses, ids)
        if not done:
            raise NotEnoughData("Another process updated the policy meanwhile: run the same command again.")
        await self.checkpoint()


@dataclass(frozen=True, slots=True)
class LearntPolicy:
    decisions: int
    episodes: int
    prompts: int
    """New ones that were kept: what the policy makes of those that it began with."""
    gains: dict[str, float]
    """By the kept prompt's id, on training windows."""


async def learn_policy(
    database: Database,
    settings: PromptsCommand,
    *,
    starts: Sequence[StructuredPrompt],
    material: PromptMaterial,
    say: Callable[[str], None],
) -> LearntPolicy:
    """Learn from ``settings.deed.decisions`` decisions, then keep what the policy makes of each start."""
    from trainer.prompts.arena import play_episode

    store, gains, new = LedgerStore(database, settings), dict[str, float](), 0
    async with open_arena(database, settings, material) as arena:
        assert isinstance(arena.judges, TrialJudges)
        until = max(end_of(one.window.window_id, one.window.hours) for one in arena.judges.windows).isoformat()
        for start in starts:  # before the first look at these windows: the gate leaves them out
            noted = new_prompt(start, settings.deed.prompt_role, settings.limits, evidence={"learnt_until": until})
            await keep_prompt(database.pool, noted)
        done = await learn(arena, starts, settings.policy, store, decisions=settings.deed.decisions, say=say)
        for start in starts:
            episode = await play_episode(arena, done.policy, start, "kept", deterministic=True)
            before = start
            for one, prompt in zip(episode.steps, episode.prompts, strict=True):
                if prompt.prompt_id == before.prompt_id:
                    continue
                evidence = {
                    "gain": round(one.reward, 5),
                    "learnt_until": until,
                    "points": settings.limits.prompt_points,
                }
                name = episode.mutations[one.step]
                kept = new_prompt(
                    prompt,
                    settings.deed.prompt_role,
                    settings.limits,
                    parent=before,
                    mutation=name,
                    evidence=evidence,
                    made_by="policy",
                    material=material,
                )
                new += await keep_prompt(database.pool, kept)
                gains[kept.prompt_id], before = one.reward, prompt
    return LearntPolicy(done.policy.decisions, done.episodes, new, gains)


async def compare_contestants(
    database: Database,
    settings: PromptsCommand,
    *,
    starts: Sequence[StructuredPrompt],
    material: PromptMaterial,
    say: Callable[[str], None],
) -> list[tuple[str, str, str, int]]:
    """Contestants learn on every second prompt and improve the others, which they have not seen."""
    seen, unseen = starts[::2], starts[1::2] or starts
    if len(starts) == 1:
        say("There is one prompt: contestants learn on the one that they improve.")
    async with open_arena(database, settings, material) as arena:
        found = await compare(
            arena,
            seen,
            unseen,
            settings.policy,
            decisions=settings.deed.decisions,
            gepa_budget=settings.deed.gepa_budget,
        )
    return found.table()
