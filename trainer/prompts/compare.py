"""The comparison: every contestant learns on some prompts and improves others that it has not seen.

The gain of a contestant at a prompt is the judged score of what it made of it minus that of the prompt. Contestants are
compared at the same prompts; GEPA, which asks the judges while it improves, is told with what that cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config.prompts import PolicySettings
from trainer.evidence import Interval
from trainer.prompts.arena import Arena, play_episode
from trainer.prompts.contestants import FixedMutation, KeepAlways, LinearThompson, RandomMutation
from trainer.prompts.experience import KEEP, MUTATIONS, Experience, Selects
from trainer.prompts.learn import ExperienceStore, InMemory, learn
from trainer.prompts.reflective import evolve
from trainer.prompts.structure import StructuredPrompt
from trainer.statistics.gain import gain_interval

RANDOM_DRAWS = 16
"""Episodes of the random contestant at each prompt, whose mean is its gain."""


@dataclass(frozen=True, slots=True)
class Improved:
    """What a contestant made of one unseen prompt."""

    contestant: str
    start: str
    final: str
    mutations: tuple[str, ...]
    gain: float
    judged_points: int = 0
    """Scores that it asked for on the way."""

    @property
    def kept(self) -> bool:
        return self.start == self.final


@dataclass(frozen=True, slots=True)
class Ranked:
    """How a contestant did over all unseen prompts."""

    contestant: str
    gain: Interval
    policy_minus: Interval | None
    """The policy's gain minus its own, at the same prompts; None for the policy."""
    scores: int
    """That it asked for on the way."""


@dataclass(frozen=True, slots=True)
class Contest:
    results: tuple[Improved, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.contestant for one in self.results))

    def of(self, name: str) -> tuple[Improved, ...]:
        return tuple(one for one in self.results if one.contestant == name)

    def gains(self, name: str) -> list[float]:
        return [one.gain for one in self.of(name)]

    def difference(self, name: str, other: str) -> list[float]:
        """At each prompt; both improved the same ones in the same order."""
        return [a - b for a, b in zip(self.gains(name), self.gains(other), strict=True)]

    def standings(self) -> list[Ranked]:
        return [
            Ranked(
                name,
                gain_interval(self.gains(name)),
                None if name == "policy" else gain_interval(self.difference("policy", name)),
                sum(one.judged_points for one in self.of(name)),
            )
            for name in self.names
        ]


async def compare(
    arena: Arena,
    seen: Sequence[StructuredPrompt],
    unseen: Sequence[StructuredPrompt],
    settings: PolicySettings,
    *,
    decisions: int,
    gepa_budget: int,
    store: ExperienceStore | None = None,
) -> Contest:
    """Contestants learn from ``decisions`` decisions on ``seen`` and improve each of ``unseen``; GEPA may ask for
    ``gepa_budget`` scores at each."""
    learnt = await learn(arena, seen, settings, store or InMemory(), decisions=decisions)
    results: list[Improved] = []
    seed = settings.policy_seed
    vectors = [await arena.embed(prompt.text) for prompt in seen]
    features = 1 + max(int(place) for vector in vectors for place in np.flatnonzero(vector))  # without what was padded
    learners: tuple[Selects, ...] = (FixedMutation(seed), LinearThompson(features, seed))
    for contestant in (KeepAlways(), *learners, learnt.policy):
        if contestant in learners:
            await _practise(arena, contestant, seen, decisions, seed)
        for prompt in unseen:
            results.append(await _improved(arena, contestant, prompt))
    for prompt in unseen:
        results.append(await _at_random(arena, prompt, seed))
    for prompt in unseen:
        found = await evolve(arena, prompt, budget=gepa_budget, seed=seed)
        gain = await arena.reward(prompt, found.prompt)
        results.append(
            Improved("gepa", prompt.prompt_id, found.prompt.prompt_id, (), gain, judged_points=found.judged_points)
        )
    return Contest(tuple(results))


async def _practise(
    arena: Arena, contestant: Selects, seen: Sequence[StructuredPrompt], decisions: int, seed: int
) -> None:
    chance, done = np.random.default_rng(seed), 0
    while done < decisions:
        steps = list[Experience]()
        while len(steps) < min(64, decisions - done):
            start = seen[int(chance.integers(len(seen)))]
            steps += (await play_episode(arena, contestant, start, str(done + len(steps)))).steps
        contestant.learn(steps)
        done += len(steps)


async def _improved(arena: Arena, contestant: Selects, prompt: StructuredPrompt) -> Improved:
    episode = await play_episode(arena, contestant, prompt, "unseen", deterministic=True)
    made = tuple(name for name in episode.mutations if name != MUTATIONS[KEEP])
    return Improved(contestant.name, prompt.prompt_id, episode.final.prompt_id, made, episode.gain)


async def _at_random(arena: Arena, prompt: StructuredPrompt, seed: int) -> Improved:
    chance = RandomMutation(seed)
    gains = [(await play_episode(arena, chance, prompt, str(draw))).gain for draw in range(RANDOM_DRAWS)]
    return Improved(chance.name, prompt.prompt_id, "", (), float(np.mean(gains)))
