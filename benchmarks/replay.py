"""What replay saves: the held-out score of a softmax policy by how many groups were judged, with and without it.

    python benchmarks/replay.py [--seeds 20] [--luck 0.0 0.2 1.0] [--judged 240] [--rate 4] [--preference 2.5] [--quick]

A policy with a weight for each word decides between two answers in hours of random words, of which the news is a linear
function. At first it prefers one answer whatever it reads, as a language model does. Eight agents an hour are judged
right or wrong (``--luck`` of the hours by a coin); hours in which all say the same have no spread. Collecting,
priorities, draws, uses and credit are the trainer's own; the step is PPO's (clip 0.2, the logged probabilities as
behaviour, ART's scale of a batch). Printed: how likely the right answer is in 2,000 unseen hours, the mean over seeds
with its standard error, and the difference, seed by seed, from no replay on all judged groups.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from trainer.config.training import ReplaySettings, ReplayShareSettings
from trainer.ledger.replays import Replayable
from trainer.rewards import Graded
from trainer.train.credit import RULE, rewards_of
from trainer.train.replay import draw, places_of, priorities
from trainer.train.selection import spread
from trainer.types import Group, JudgedGroup, JudgeIdentity, Verdict

WORDS, AGENTS, PLACES = 8, 8, 12
STALE, LARGEST = 4, 3.0
"""As in training: replies of an older policy are scored again, and no ratio below the mean counts for more."""
How = Literal["off", "uniform", "prioritised"]
IDENTITY = JudgeIdentity("simulated", "right", "1", "1", is_llm=False)


@dataclass(frozen=True, slots=True)
class Hour:
    """What the agents saw, said and were judged by, and how likely each answer was to them."""

    words: Any
    said: Any
    likely: Any
    scores: tuple[float, ...]
    step: int
    """Of the policy that played it."""


def chance_of_first(weights: Any, words: Any) -> Any:
    return 1 / (1 + np.exp(-words @ weights))


def seen(rng: Any, hours: int) -> Any:
    """The words of some hours, and a one that is there in every hour."""
    words = rng.normal(size=(hours, WORDS)) / np.sqrt(WORDS)
    return np.concatenate([words, np.ones((hours, 1))], axis=1)


def played(rng: Any, weights: Any, truth: Any, luck: float, step: int) -> Hour:
    words = seen(rng, 1)[0]
    right = bool(words @ truth > 0) if rng.random() >= luck else bool(rng.integers(2))
    first = chance_of_first(weights, words)
    said = rng.random(AGENTS) < first
    likely = np.where(said, first, 1 - first)
    return Hour(words, said, likely, tuple(float(one == right) for one in said), step)


def stepped(weights: Any, hours: Sequence[Hour], step: int, rate: float) -> Any:
    """One step as the backends make it: ART's common scale of a batch's advantages, PPO's clip, a gradient norm of 1.

    Nothing is learnt where the ratio has left the clip range on the side that the advantage pushes to.
    """
    graded = [(str(place), [*map(_graded, hour.said, hour.scores)]) for place, hour in enumerate(hours)]
    gains = [np.array([one.advantage for one in rewards]) for rewards in rewards_of(graded, RULE)]
    scale = np.abs(np.concatenate(gains)).mean()
    total = np.zeros(WORDS + 1)
    for hour, gain in zip(hours, gains, strict=True):
        first = chance_of_first(weights, hour.words)
        now = np.where(hour.said, first, 1 - first)
        ratio = np.ones(AGENTS) if step - hour.step > STALE else now / hour.likely
        ratio = np.where(gain < 0, np.minimum(ratio, LARGEST), ratio)
        kept = ~(((gain > 0) & (ratio > 1.2)) | ((gain < 0) & (ratio < 0.8)))
        total += ((gain / scale * ratio * kept) * np.where(hour.said, 1 - first, -first)).mean() * hour.words
    mean = total / len(hours)
    return weights + rate * mean / max(1.0, float(np.linalg.norm(mean)))


def _graded(said: bool, score: float) -> Graded:
    return Graded("", score, 0.0, "stake +1" if said else "stake -1", 1.0)


def held_out(weights: Any, truth: Any, rng: Any) -> float:
    words = seen(rng, 2000)
    first = chance_of_first(weights, words)
    return float(np.where(words @ truth > 0, first, 1 - first).mean())


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried on one seed after the other."""

    luck: float
    rate: float
    preference: float


def trained(seed: int, trial: Trial, how: How, judged: int) -> tuple[float, int, int]:
    """The held-out score after so many judged groups, the steps made and the groups replayed."""
    rng = np.random.default_rng(seed)
    truth, weights = np.append(rng.normal(size=WORDS), 0.0), np.append(np.zeros(WORDS), trial.preference)
    settings = ReplaySettings(replay=how)
    places, buffer, uses, hours = (
        places_of(ReplayShareSettings(replay=how), PLACES),
        list[Replayable](),
        dict[str, int](),
        dict[str, Hour](),
    )
    step = replayed = 0
    for number in range(judged):
        name = f"hour-{number}"
        hour = hours[name] = played(rng, weights, truth, trial.luck, step)
        group = Group(name, name, (), ())  # type: ignore[arg-type]  # no rows: the hour has all
        verdicts = tuple(Verdict(f"{name}-{agent}", score, 0.0, "") for agent, score in enumerate(hour.scores))
        one = JudgedGroup(group, verdicts, IDENTITY, name)
        ready = places.take(one if spread(one.scores) > 0 else None, group)
        if ready is None:
            continue
        left = [one for one in buffer if step - one.step <= settings.replay_lag and uses[one.group_id] < 3]
        again = draw(left, priorities(left, settings, step), ready.empty, f"{seed}:{step}") if left else []
        names = [one.group.group_id for one in ready.groups] + [one.group_id for one in again]
        weights = stepped(weights, [hours[name] for name in names], step, trial.rate)
        step, replayed = step + 1, replayed + len(again)
        for one in ready.groups:
            buffer.append(Replayable(len(buffer), "", one.group.group_id, step, spread(one.scores), 1))
        for name in names:
            uses[name] = uses.get(name, 0) + 1
    return held_out(weights, truth, np.random.default_rng(10_000 + seed)), step, replayed


def figures(seeds: int, trial: Trial, how: How, judged: int) -> tuple[Any, float, float]:
    found = [trained(seed, trial, how, judged) for seed in range(seeds)]
    return np.array([one[0] for one in found]), *np.mean([one[1:] for one in found], axis=0)


def told(scores: Any) -> str:
    return f"{scores.mean():.3f} ± {scores.std(ddof=1) / np.sqrt(len(scores)):.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--luck", type=float, nargs="+", default=[0.0, 0.2, 1.0])
    parser.add_argument("--judged", type=int, default=240, help="groups that are judged without replay")
    parser.add_argument("--share", type=float, default=0.7, help="of them, how many are judged with replay")
    parser.add_argument("--rate", type=float, default=4.0, help="length of a step")
    parser.add_argument(
        "--preference", type=float, default=2.5, help="of the untrained policy for one answer, in logits"
    )
    parser.add_argument("--quick", action="store_true", help="a short run")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.luck = 6, [0.2]
    fewer = int(options.share * options.judged)
    print("luck  replay       judged  steps  replayed  held-out score    minus without replay")
    for luck in options.luck:
        trial = Trial(luck, options.rate, options.preference)
        whole, steps, _ = figures(options.seeds, trial, "off", options.judged)
        rows: list[tuple[How, int]] = [("off", options.judged), ("off", fewer), ("uniform", fewer)]
        rows += [("prioritised", fewer), ("prioritised", options.judged)]
        for how, judged in rows:
            scores, steps, again = figures(options.seeds, trial, how, judged)
            counts = f"{judged:6d} {steps:6.1f} {again:9.1f}"
            print(f"{luck:4.1f}  {how:11s}  {counts}  {told(scores)}   {told(scores - whole)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
