"""Where mutations earn their rewards: an episode mutates a prompt up to five times, and judges say what each was worth.

The reward of a mutation is the judged score of the mutated prompt minus that of its parent, at the same decision points
of training windows. *Keep* earns nothing and ends the episode. What judges, embeds and writes is handed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from data_bridge.errors import ConfigurationError
from trainer.config.prompts import PromptLimits
from trainer.prompts.experience import KEEP, MUTATIONS, Experience, Floats, Selects
from trainer.prompts.material import PromptMaterial
from trainer.prompts.mutations import Mutated, applicable, mutate
from trainer.prompts.structure import StructuredPrompt


@dataclass(frozen=True, slots=True)
class PointScore:
    """What the replies to a prompt at one decision point were worth, and why."""

    point: str
    score: float
    explanation: str = ""


class JudgesPrompts(Protocol):
    """Scores a prompt at decision points that are the same for every prompt. What is known is not paid for again."""

    async def judge(self, prompt: StructuredPrompt) -> Sequence[PointScore]: ...


class WritesMutation(Protocol):
    """Writes a mutation; see ``writer``. None: what it wrote was refused, and the operator's is taken."""

    async def write(
        self, prompt: StructuredPrompt, mutation: str, material: PromptMaterial, limits: PromptLimits
    ) -> Mutated | None: ...


Embed = Callable[[str], Awaitable[Floats]]


@dataclass(frozen=True)
class Arena:
    judges: JudgesPrompts
    embed: Embed
    material: PromptMaterial
    limits: PromptLimits
    writer: WritesMutation | None = None

    def mask(self, prompt: StructuredPrompt) -> tuple[bool, ...]:
        return applicable(prompt, self.material, self.limits)

    async def mutated(self, prompt: StructuredPrompt, mutation: str) -> Mutated:
        """By the model if there is one and it kept the promises, else by the operator."""
        if self.writer is not None and mutation != MUTATIONS[KEEP]:
            written = await self.writer.write(prompt, mutation, self.material, self.limits)
            if written is not None:
                return written
        return mutate(prompt, mutation, self.material, self.limits)

    async def reward(self, parent: StructuredPrompt, child: StructuredPrompt) -> float:
        """The mean difference over the points at which both were judged."""
        if parent.prompt_id == child.prompt_id:
            return 0.0
        before = {one.point: one.score for one in await self.judges.judge(parent)}
        after = {one.point: one.score for one in await self.judges.judge(child)}
        both = before.keys() & after.keys()
        if not both:
            raise ConfigurationError(
                f"The prompts {parent.prompt_id} and {child.prompt_id} have no judged decision point in common."
            )
        return fmean(after[point] - before[point] for point in sorted(both))


@dataclass(frozen=True, slots=True)
class Episode:
    """What became of a prompt."""

    start: StructuredPrompt
    steps: tuple[Experience, ...]
    prompts: tuple[StructuredPrompt, ...] = field(repr=False)
    """After each step."""

    @property
    def final(self) -> StructuredPrompt:
        return self.prompts[-1] if self.prompts else self.start

    @property
    def mutations(self) -> tuple[str, ...]:
        return tuple(MUTATIONS[one.action] for one in self.steps)

    @property
    def gain(self) -> float:
        return sum(one.reward for one in self.steps)


async def play_episode(
    arena: Arena, selector: Selects, start: StructuredPrompt, name: str, *, deterministic: bool = False
) -> Episode:
    """Mutate ``start`` until the selector keeps, nothing else applies, or the episode is as long as it may be."""
    prompt, steps, prompts = start, list[Experience](), list[StructuredPrompt]()
    most = arena.limits.mutations_per_episode
    for number in range(most):
        embedding, mask = await arena.embed(prompt.text), arena.mask(prompt)
        chosen = selector.select(embedding, mask, deterministic=deterministic)
        child = (await arena.mutated(prompt, chosen.name)).prompt
        reward = await arena.reward(prompt, child)
        done = chosen.action == KEEP or number + 1 == most or sum(arena.mask(child)) == 1
        steps.append(
            Experience(
                embedding,
                mask,
                chosen.action,
                chosen.log_prob,
                chosen.value,
                reward,
                done,
                name,
                number,
                chosen.version,
            )
        )
        prompts.append(child)
        prompt = child
        if done:
            break
    return Episode(start, tuple(steps), tuple(prompts))
