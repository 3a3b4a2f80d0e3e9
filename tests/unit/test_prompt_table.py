"""On the measured table of prompts and mutations: the policy learns what helps, and the gate refuses what does not.

A short version of ``benchmarks/prompt_mutations.py``, with a small network and words as the embedding.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from trainer.config.prompts import PolicySettings, PromptLimits
from trainer.prompts.arena import Arena, play_episode
from trainer.prompts.contestants import FixedMutation, RandomMutation
from trainer.prompts.experience import KEEP, MUTATIONS, Floats
from trainer.prompts.learn import InMemory, learn
from trainer.prompts.market import market_material
from trainer.prompts.mutations import applicable, mutate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from lessons_lift import promoted_share
from planted_prompts import DEFECTS, TASKS, Table, planted, wanted
from prompt_mutations import GOOD, UNSEEN, TableJudges, mutated_by_chance, random_differences

MATERIAL, LIMITS = market_material(), PromptLimits()
SETTINGS = PolicySettings(
    policy_input=64, policy_hidden=(32, 16), policy_batch=32, policy_buffer=128, policy_learning_rate=3e-3
)


@pytest.fixture(scope="module")
def table() -> Table:
    return Table()


def test_the_table_has_every_prompt_that_mutations_reach(table: Table) -> None:
    assert {one.prompt_id for one in wanted(len(TASKS), 5)} <= table.scores.keys()
    assert {len(scores) for scores in table.scores.values()} == {16}


@pytest.mark.parametrize(
    ("defect", "mutation"),
    [("no examples", "expansion"), ("vague", "expansion"), ("no format", "constraint_addition")],
)
def test_a_defect_is_mended_by_its_mutation(table: Table, defect: str, mutation: str) -> None:
    for wording in range(len(TASKS)):
        prompt = planted(wording, defect)
        before, after = table.of(prompt), table.of(mutate(prompt, mutation, MATERIAL, LIMITS).prompt)
        assert before is not None
        assert after is not None
        assert np.mean(after) - np.mean(before) > 0.1


def test_nothing_helps_a_good_prompt(table: Table) -> None:
    for wording in range(len(TASKS)):
        prompt = planted(wording, GOOD)
        names = [name for name, allowed in zip(MUTATIONS, applicable(prompt, MATERIAL, LIMITS), strict=True) if allowed]
        means = {name: np.mean(table.of(mutate(prompt, name, MATERIAL, LIMITS).prompt) or []) for name in names}
        assert max(means, key=lambda name: means[name]) == "keep"


@pytest.mark.parametrize("centred", [False, True])
def test_a_random_mutation_of_a_good_prompt_is_hardly_ever_promoted(table: Table, centred: bool) -> None:
    """200 comparisons through the gate, resampled from what was measured; ``centred``: as if it did no harm."""
    assert promoted_share(random_differences(table, len(TASKS)), 60, centred=centred) <= 0.05


async def test_the_live_check_asks_about_random_mutation_too(table: Table) -> None:
    found = await mutated_by_chance(table, [0, 1], len(TASKS))
    assert len(found) == 2 * UNSEEN * len(DEFECTS)
    assert {name for one in found for name in (one.start, one.final)} <= table.scores.keys()
    assert sum(one.kept for one in found) < len(found) / 2
    assert {one.contestant for one in found} == {"random"}


async def test_the_policy_beats_random_and_the_best_fixed_mutation_on_unseen_prompts(table: Table) -> None:
    vectors = {one.text: words(one.text) for one in wanted(len(TASKS), 5)}

    async def embed(text: str) -> Floats:
        return vectors[text]

    arena = Arena(TableJudges(table), embed, MATERIAL, LIMITS)
    seen = [planted(wording, defect) for wording in range(5) for defect in DEFECTS]
    store = InMemory()
    policy = (await learn(arena, seen, SETTINGS, store, decisions=2_048)).policy
    fixed, chance = FixedMutation(), RandomMutation()
    fixed.learn(store.kept)
    gains: dict[str, float] = {}
    for one, draws in ((policy, 1), (fixed, 1), (chance, 4)):
        episodes = [
            await play_episode(arena, one, planted(wording, defect), "unseen", deterministic=one is not chance)
            for wording in range(5, 8)
            for defect in DEFECTS
            for _ in range(draws)
        ]
        gains[one.name] = float(np.mean([episode.gain for episode in episodes]))
    assert gains["policy"] > 1.2 * gains["best fixed"]
    assert gains["policy"] > 1.2 * gains["random"]
    good = [planted(wording, GOOD) for wording in range(5, 8)]
    kept = [policy.distribution(vectors[one.text], arena.mask(one))[KEEP] for one in good]
    assert np.mean(kept) > 0.8


def words(text: str) -> Floats:
    """Which words a text has, as 64 numbers: the same on every machine."""
    found = np.zeros(64, np.float32)
    for word in set(text.lower().split()):
        found[sum(word.encode()) % 64] += 1
    return found / np.float32(np.linalg.norm(found))
