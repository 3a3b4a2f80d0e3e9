"""The policy learns on training windows: episodes of mutations, each worth its judged score minus its parent's.

Experience and checkpoints are those of the service: killed anywhere, the same command goes on, and whoever updates the
policy meanwhile is learnt on from.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from data_bridge.database import Database
from data_bridge.window_ids import end_of
from trainer.config.prompt_commands import PromptsCommand
from trainer.ledger import policy as ledger
from trainer.ledger.prompts import keep_prompt
from trainer.prompts.arena import Arena, play_episode
from trainer.prompts.compare import Ranked, compare
from trainer.prompts.experience import Experience, UpdateReport
from trainer.prompts.learn import ExperienceStore, learn
from trainer.prompts.material import PromptMaterial
from trainer.prompts.structure import StructuredPrompt
from trainer.run.policy_desk import NAME, experience_of, losses_of
from trainer.run.prompt_release import new_prompt
from trainer.run.prompt_trials import TrialJudges, open_arena

if TYPE_CHECKING:
    from trainer.prompts.policy import PromptPolicy


class LedgerStore(ExperienceStore):
    """The ledger as the learning loop sees it. The loop counts updates of a policy; the ledger's versions also count
    what was loaded, so the two numbers are kept apart here."""

    def __init__(self, database: Database, settings: PromptsCommand, policy: str = NAME) -> None:
        self._database, self._settings, self._policy = database, settings, policy
        self._version = 0
        self._acting: PromptPolicy | None = None
        self._waiting: Sequence[str] = ()
        self._run = uuid.uuid4().hex[:12]  # two processes may learn at once: their episodes are not the same

    async def add(self, experiences: Sequence[Experience]) -> None:
        sent = [
            ledger.SentExperience(
                f"learn {self._run}/{one.episode}/{one.step}",
                self._version,
                f"learn {self._run}/{one.episode}",
                one.step,
                struct.pack(f"<{len(one.embedding)}f", *one.embedding),
                tuple(map(bool, one.mask)),
                one.action,
                one.reward,
                one.done,
            )
            for one in experiences
        ]
        await ledger.keep_episode(self._database, self._policy, sent)

    async def waiting(self, version: int) -> Sequence[Experience]:
        assert self._acting is not None
        sent = await ledger.experience_to_learn(self._database.pool, self._policy, self._version)
        self._waiting = [one.experience_id for one in sent]
        return [replace(one, version=version) for one in experience_of(self._acting, sent)]

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

    async def learnt(self, report: UpdateReport, checkpoint: bytes) -> bool:
        losses = losses_of(report, self._version + 1)
        made = (self._version, checkpoint, losses, self._waiting)
        is_kept = await ledger.commit_update(self._database, self._policy, *made)
        await self.checkpoint()
        return is_kept


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
    store, gains, new = LedgerStore(database, settings), dict[str, float](), 0
    async with open_arena(database, settings, material) as arena:
        until = _learnt_until(arena)
        for start in starts:  # before the first look at these windows: the gate leaves them out
            noted = new_prompt(start, settings.deed.prompt_role, settings.limits, evidence={"learnt_until": until})
            await keep_prompt(database.pool, noted)
        done = await learn(arena, starts, settings.policy, store, decisions=settings.deed.decisions, say=say)
        for start in starts:
            found = await _keep_what_it_makes(database, settings, arena, done.policy, start, until)
            new += sum(is_new for is_new, _ in found.values())
            gains |= {prompt_id: gain for prompt_id, (_, gain) in found.items()}
    return LearntPolicy(done.policy.decisions, done.episodes, new, gains)


def _learnt_until(arena: Arena) -> str:
    assert isinstance(arena.judges, TrialJudges)
    return max(end_of(one.window.window_id, one.window.hours) for one in arena.judges.windows).isoformat()


async def _keep_what_it_makes(
    database: Database,
    settings: PromptsCommand,
    arena: Arena,
    policy: PromptPolicy,
    start: StructuredPrompt,
    until: str,
) -> dict[str, tuple[bool, float]]:
    """By the id of each prompt that the policy makes of ``start``: whether it is new, and its gain over its parent."""
    episode = await play_episode(arena, policy, start, "kept", deterministic=True)
    found = dict[str, tuple[bool, float]]()
    parent = start
    for one, prompt in zip(episode.steps, episode.prompts, strict=True):
        if prompt.prompt_id == parent.prompt_id:
            continue
        mutation = episode.mutations[one.step]
        written_by = (await arena.mutated(parent, mutation)).written_by
        points = len(await arena.judges.judge(prompt))
        measured = {"gain": round(one.reward, 5), "learnt_until": until, "points": points}
        kept = new_prompt(
            prompt,
            settings.deed.prompt_role,
            settings.limits,
            parent=parent,
            mutation=mutation,
            evidence=measured | {"written_by": written_by},
            made_by="policy",
            material=arena.material,
        )
        found[kept.prompt_id] = (await keep_prompt(database.pool, kept), one.reward)
        parent = prompt
    return found


async def compare_contestants(
    database: Database,
    settings: PromptsCommand,
    *,
    starts: Sequence[StructuredPrompt],
    material: PromptMaterial,
    say: Callable[[str], None],
) -> list[Ranked]:
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
    return found.standings()
