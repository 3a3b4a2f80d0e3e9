"""Which mutation helps which prompt? The policy against random, best fixed, Thompson and GEPA, on planted defects.

    python benchmarks/prompt_mutations.py [--seeds 0 1 2] [--decisions 8192] [--live N] [--bandit] [--out FILE] [--json]

Learnt on the measured table of ``planted_prompts`` (prompt, mutation, score of the embedded model). Each seed learns on
five wordings with all their defects and improves the other three, which it has not seen. ``--live`` asks the model
itself, at other questions with unseen words, about a sample of what the policy and the others made of unseen prompts,
random mutation among them (one random episode for each seed and prompt). ``--bandit`` is PPO alone: 4,096 decisions
with one best arm, three seeds, the default settings but for updates of 128 decisions instead of 2,048. Every seed is a
line of FILE as soon as it is learnt, and is not learnt again.

Printed: the gain of each contestant over the unseen prompts with defects, with 95 % intervals over wordings and seeds;
the policy's gain minus theirs; how often it keeps the good prompt, as drawn by its probabilities; and how often the
gate promotes a random mutation of the good prompt, in 200 comparisons resampled from the measured differences.
Exits 1 if the policy does not beat random and best fixed, keeps less than 90 %, or more than 5 % are promoted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from scipy.stats import bootstrap

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lessons_lift import COMPARISONS, promoted_share
from planted_prompts import DEFECTS, TASKS, Scorer, Table, asked, planted, reachable, wanted

from trainer.config.prompts import PolicySettings, PromptLimits
from trainer.inference.embedding import EmbeddedModel
from trainer.prompts.arena import Arena, PointScore, play_episode
from trainer.prompts.compare import Contest, Improved, compare
from trainer.prompts.contestants import RandomMutation
from trainer.prompts.experience import KEEP, MUTATIONS, Experience, Floats
from trainer.prompts.learn import InMemory
from trainer.prompts.market import market_material
from trainer.prompts.mutations import applicable, mutate
from trainer.prompts.policy import PromptPolicy
from trainer.prompts.structure import StructuredPrompt
from trainer.world.questions import questions

GOOD = "none"
UNSEEN = 3
"""Wordings that a seed does not learn from."""
BUFFER = 256
"""Decisions of an update. With the default of 2,048 the policy would make four updates in all."""
GEPA_BUDGET = 120
"""Scores at decision points that GEPA may ask for at each prompt: some seven prompts at all questions."""


class TableJudges:
    """Scores from the table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def judge(self, prompt: StructuredPrompt) -> Sequence[PointScore]:
        scores = self._table.of(prompt)
        if scores is None:
            raise SystemExit(f"{prompt.prompt_id} is not in the table: run benchmarks/planted_prompts.py first.")
        return [PointScore(str(place), score, _explained(score)) for place, score in enumerate(scores)]


def _explained(score: float) -> str:
    """In the offline judge's sense: most of the mass was on no action at all, or on the wrong one."""
    return "mostly no action: the reply is not in the format" if score < 0.1 else "an action, against the news at times"


async def embedded(prompts: Sequence[StructuredPrompt]) -> dict[str, Floats]:
    model = EmbeddedModel(patience=600.0)
    try:
        vectors = await model.embed([one.text for one in prompts])
    finally:
        await model.close()
    return {one.text: np.pad(vector, (0, 1536 - len(vector))) for one, vector in zip(prompts, vectors, strict=True)}


def split(seed: int, wordings: int) -> tuple[list[int], list[int]]:
    """The wordings to learn from, and the others."""
    order = np.random.default_rng([seed, 17]).permutation(wordings).tolist()
    return order[UNSEEN:], order[:UNSEEN]


async def one_seed(arena: Arena, seed: int, options: argparse.Namespace) -> tuple[Contest, PromptPolicy]:
    settings = PolicySettings(policy_seed=seed, policy_buffer=BUFFER)
    learnt, unseen = split(seed, options.wordings)
    store = InMemory()
    found = await compare(
        arena,
        [planted(wording, defect) for wording in learnt for defect in DEFECTS],
        [planted(wording, defect) for wording in unseen for defect in DEFECTS],
        settings,
        decisions=options.decisions,
        gepa_budget=GEPA_BUDGET,
        store=store,
    )
    kept = await store.checkpoint()
    assert kept is not None
    return found, PromptPolicy.from_bytes(kept, settings)


def interval(groups: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float, float]:
    """Mean and 95 % interval by bootstrap over groups: the defects of one wording are no independent samples."""
    means = np.array([np.mean(one) for one in groups])
    if len(means) < 2 or np.ptp(means) == 0:
        return float(means.mean()), float(means.min()), float(means.max())
    ends = bootstrap((means,), np.mean, method="percentile", rng=seed).confidence_interval
    return float(means.mean()), float(ends.low), float(ends.high)


class Seed(msgspec.Struct, frozen=True):
    """What one seed gave."""

    seed: int
    decisions: int
    results: tuple[Improved, ...]
    keeps: list[float]
    """The probability of *keep* at each unseen wording of the good prompt."""


class Kept:
    """A file with a line for each seed that was learnt from so many decisions."""

    def __init__(self, path: Path, decisions: int) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        found = [msgspec.json.decode(line, type=Seed) for line in lines]
        self.seeds = {one.seed: one for one in found if one.decisions == decisions}

    def add(self, one: Seed) -> None:
        self.seeds[one.seed] = one
        with self._path.open("a") as file:
            file.write(f"{msgspec.json.encode(one).decode()}\n")


def by_wording(values: Sequence[float]) -> list[list[float]]:
    """Values of one seed's unseen prompts with defects, in the order of ``one_seed``, a list for each wording."""
    return [list(values[start + 1 : start + len(DEFECTS)]) for start in range(0, len(values), len(DEFECTS))]


async def keep_share(arena: Arena, policy: PromptPolicy, wordings: Sequence[int]) -> list[float]:
    """The probability of *keep* at each unseen wording of the good prompt."""
    found = []
    for wording in wordings:
        prompt = planted(wording, GOOD)
        found.append(policy.distribution(await arena.embed(prompt.text), arena.mask(prompt))[KEEP])
    return found


def random_differences(table: Table, wordings: int, seed: int = 0) -> list[float]:
    """One random mutation of each good prompt against the prompt, at every question."""
    chance, found = np.random.default_rng(seed), list[float]()
    material, limits = market_material(), PromptLimits()
    for wording in range(wordings):
        good = planted(wording, GOOD)
        before = table.of(good)
        allowed = [place for place, is_allowed in enumerate(applicable(good, material, limits)) if is_allowed and place]
        for place in range(len(before or [])):
            name = MUTATIONS[int(chance.choice(allowed))]
            after = table.of(mutate(good, name, material, limits).prompt)
            assert before is not None
            assert after is not None
            found.append(after[place] - before[place])
    return found


def bandit(seed: int, decisions: int = 4096, buffer: int = 128) -> float:
    """The probability of the one best arm, mean over the contexts, after so many decisions."""
    policy = PromptPolicy(PolicySettings(policy_seed=seed, policy_buffer=buffer))
    chance, everything = np.random.default_rng(seed), [True] * len(MUTATIONS)
    contexts = chance.normal(size=(16, 384))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    best, steps = int(chance.integers(len(MUTATIONS))), list[Experience]()
    for number in range(decisions):
        seen = contexts[int(chance.integers(len(contexts)))].astype(np.float32)
        chosen = policy.select(seen, everything)
        reward = float(chance.normal(chosen.action == best, 0.1))
        steps.append(
            Experience(
                seen,
                everything,
                chosen.action,
                chosen.log_prob,
                chosen.value,
                reward,
                True,
                str(number),
                0,
                chosen.version,
            )
        )
        if len(steps) == buffer:
            policy.update(steps)
            steps = []
    return float(np.mean([policy.distribution(one, everything)[best] for one in contexts]))


def sampled(seeds: Sequence[int], wordings: int, number: int) -> list[str]:
    """The ids of ``number`` unseen prompts of these seeds, drawn by chance."""
    starts = [planted(own, defect) for seed in seeds for own in split(seed, wordings)[1] for defect in DEFECTS]
    names = list(dict.fromkeys(one.prompt_id for one in starts))
    return [str(name) for name in np.random.default_rng(5).permutation(names)[:number]]


async def mutated_by_chance(table: Table, seeds: Sequence[int], wordings: int) -> list[Improved]:
    """One random episode at each unseen prompt of each seed: the control of the live check. In ``compare`` the random
    contestant's gain is a mean over many, of which no single prompt is kept."""

    async def unread(text: str) -> Floats:
        return np.zeros(1, np.float32)

    arena, found = Arena(TableJudges(table), unread, market_material(), PromptLimits()), list[Improved]()
    for seed in seeds:
        chance = RandomMutation(seed)
        for start in (planted(own, defect) for own in split(seed, wordings)[1] for defect in DEFECTS):
            episode = await play_episode(arena, chance, start, start.prompt_id)
            ids = (start.prompt_id, episode.final.prompt_id)
            found.append(Improved(chance.name, *ids, episode.mutations, episode.gain))
    return found


def live_check(results: Sequence[Improved], every: dict[str, StructuredPrompt], options: argparse.Namespace) -> Any:
    """What the contestants made of some unseen prompts, at 16 questions with unseen words, asked of the model now."""
    chosen = set(sampled(options.seeds, options.wordings, options.live))
    asked_about = [one for one in results if one.start in chosen and one.final]
    known, these = Table(options.live_out), questions(16, "unseen", "trained", seed=91)
    missing = {name for one in asked_about for name in (one.start, one.final)} - known.scores.keys()
    scorer = Scorer(options.home) if missing else None
    for name in sorted(missing):
        assert scorer is not None
        known.add(every[name], scorer.scores(every[name], these))
    found: dict[str, list[float]] = {}
    for one in asked_about:
        gain = np.mean(known.scores[one.final]) - np.mean(known.scores[one.start])
        found.setdefault(one.contestant, []).append(float(gain))
    return {name: interval([[gain] for gain in gains]) for name, gains in found.items()}


async def learnt(options: argparse.Namespace, table: Table, prompts: Sequence[StructuredPrompt]) -> list[Seed]:
    """What each seed gave; those in the file are not learnt again."""
    kept = Kept(options.out, options.decisions)
    if missing := [seed for seed in options.seeds if seed not in kept.seeds]:
        vectors = await embedded(prompts)

        async def embed(text: str) -> Floats:
            return vectors[text]

        arena = Arena(TableJudges(table), embed, market_material(), PromptLimits())
        for seed in missing:
            contest, policy = await one_seed(arena, seed, options)
            keeps = await keep_share(arena, policy, split(seed, options.wordings)[1])
            kept.add(Seed(seed, options.decisions, contest.results, keeps))
            print(f"seed {seed} done", file=sys.stderr, flush=True)
    return [kept.seeds[seed] for seed in options.seeds]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    table, prompts = Table(), wanted(options.wordings, 5)
    seeds = await learnt(options, table, prompts)
    gains: dict[str, list[list[float]]] = {}
    against: dict[str, list[list[float]]] = {}
    costs: dict[str, int] = {}
    for contest in (Contest(one.results) for one in seeds):
        for name in contest.names:
            gains.setdefault(name, []).extend(by_wording(contest.gains(name)))
            against.setdefault(name, []).extend(by_wording(contest.difference("policy", name)))
            costs[name] = costs.get(name, 0) + sum(one.judged_points for one in contest.of(name))
    chance = random_differences(table, options.wordings)
    found = {
        "gain": {name: interval(own) for name, own in gains.items()},
        "policy minus": {name: interval(own) for name, own in against.items() if name != "policy"},
        "best possible": interval(_best_possible(table, options)),
        "scores asked for": costs,
        "keep on good prompts": [round(share, 4) for one in seeds for share in one.keeps],
        "random mutation of the good prompt": interval([[one] for one in chance]),
        "random promoted": promoted_share(chance, 60, centred=False),
        "random promoted, mean taken out": promoted_share(chance, 60, centred=True),
    }
    if options.live:
        results = [result for one in seeds for result in one.results]
        results += await mutated_by_chance(table, options.seeds, options.wordings)
        found["live"] = live_check(results, {one.prompt_id: one for one in prompts}, options)
    return found


def _best_possible(table: Table, options: argparse.Namespace) -> list[list[float]]:
    """The best prompt that mutations reach, at the unseen prompts with defects."""
    rows = []
    for seed in options.seeds:
        for wording in split(seed, options.wordings)[1]:
            row = []
            for defect in DEFECTS[1:]:
                start = planted(wording, defect)
                means = [float(np.mean(table.of(one) or [0.0])) for one, _ in reachable(start, 5)]
                row.append(max(means) - means[0])
            rows.append(row)
    return rows


def passes(found: dict[str, Any]) -> bool:
    beats = all(found["policy minus"][name][1] > 0 for name in ("random", "best fixed"))
    keeps = min(found["keep on good prompts"]) >= 0.9
    return beats and keeps and found["random promoted"] <= 0.05 and found["random promoted, mean taken out"] <= 0.05


def told(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:+.3f} [{value[1]:+.3f}, {value[2]:+.3f}]"
    if isinstance(value, dict):
        return "; ".join(f"{name} {told(own)}" for name, own in value.items())
    return str(value)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--wordings", type=int, default=len(TASKS))
    parser.add_argument("--decisions", type=int, default=8192, help="that every contestant learns from")
    parser.add_argument("--out", type=Path, default=Path("prompt_mutations_seeds.jsonl"), help="a line for each seed")
    parser.add_argument("--bandit", action="store_true", help="PPO alone, on a planted bandit")
    parser.add_argument("--live", type=int, default=0, metavar="N", help="ask the model about N unseen prompts")
    parser.add_argument("--live-out", type=Path, default=Path("prompt_mutations_live.jsonl"), help="a line a prompt")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.bandit:
        found: dict[str, Any] = {f"seed {seed}": round(bandit(seed), 4) for seed in options.seeds}
        print(json.dumps(found))
        return 0 if min(found.values()) >= 0.95 else 1
    found = await measure(options)
    if options.json:
        print(json.dumps(found))
    else:
        questions_asked = len(asked(16))
        print(
            f"{len(options.seeds)} seeds, {questions_asked} questions a prompt, {COMPARISONS} comparisons; mean [95 %]"
        )
        for name, value in found.items():
            print(f"{name:36s} {told(value)}")
    return 0 if passes(found) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
