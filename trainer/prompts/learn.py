"""The learning loop: episodes in the arena, experience into its store, an update whenever the buffer is full.

The store keeps what was experienced and the last checkpoint; an update's checkpoint and the note that its experience
was learnt from are one transaction. Killed anywhere, the loop goes on from there: nothing is learnt from twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from trainer.config.prompts import PolicySettings
from trainer.prompts.arena import Arena, play_episode
from trainer.prompts.experience import Experience, UpdateReport
from trainer.prompts.policy import PromptPolicy
from trainer.prompts.structure import StructuredPrompt


class ExperienceStore(Protocol):
    """Where experience and checkpoints of one policy are kept."""

    async def add(self, experiences: Sequence[Experience]) -> None:
        """Keep a whole episode."""
        ...

    async def waiting(self, version: int) -> Sequence[Experience]:
        """What this version of the policy selected and no update has learnt from yet, in the order of adding."""
        ...

    async def checkpoint(self) -> bytes | None:
        """The policy after its last update."""
        ...

    async def learnt(self, report: UpdateReport, checkpoint: bytes) -> bool:
        """What ``waiting`` gave last was learnt from, and this is the policy now: both or neither. False if it is
        neither, because somebody else updated the policy meanwhile."""
        ...


class InMemory:
    """A store for benchmarks and tests."""

    def __init__(self) -> None:
        self.kept: list[Experience] = []
        self.reports: list[UpdateReport] = []
        self._waiting: list[Experience] = []
        self._checkpoint: bytes | None = None

    async def add(self, experiences: Sequence[Experience]) -> None:
        self.kept += experiences
        self._waiting += experiences

    async def waiting(self, version: int) -> Sequence[Experience]:
        return [one for one in self._waiting if one.version == version]

    async def checkpoint(self) -> bytes | None:
        return self._checkpoint

    async def learnt(self, report: UpdateReport, checkpoint: bytes) -> bool:
        self._waiting = []
        self.reports.append(report)
        self._checkpoint = checkpoint
        return True


@dataclass(frozen=True, slots=True)
class Learnt:
    policy: PromptPolicy
    episodes: int
    """That were played now."""


async def learn(
    arena: Arena,
    starts: Sequence[StructuredPrompt],
    settings: PolicySettings,
    store: ExperienceStore,
    *,
    decisions: int,
    say: Callable[[str], None] = lambda said: None,
) -> Learnt:
    """Play episodes from ``starts``, drawn by chance, until the policy has learnt from ``decisions`` decisions."""
    policy, episodes = await _kept(store, settings), 0
    while policy.decisions < decisions:
        waiting = await store.waiting(policy.version)
        if len(waiting) >= settings.policy_buffer:
            report = policy.update(waiting)
            if await store.learnt(report, policy.to_bytes()):
                say(f"update {report.version}: {policy.decisions} decisions, entropy {report.entropy:.2f}")
            else:
                policy = await _kept(store, settings)
            continue
        for _ in range(max(1, (settings.policy_buffer - len(waiting)) // arena.limits.mutations_per_episode)):
            chance = np.random.default_rng([settings.policy_seed, policy.version, len(waiting) + episodes])
            start = starts[int(chance.integers(len(starts)))]
            name = f"{policy.version}/{len(waiting)}/{episodes}"
            await store.add((await play_episode(arena, policy, start, name)).steps)
            episodes += 1
    return Learnt(policy, episodes)


async def _kept(store: ExperienceStore, settings: PolicySettings) -> PromptPolicy:
    """The policy as it is kept, or a new one."""
    kept = await store.checkpoint()
    return PromptPolicy(settings) if kept is None else PromptPolicy.from_bytes(kept, settings)
