"""How many tokens stage ``several`` takes with a curriculum, beside uniform play of the same arms.

    python benchmarks/curriculum.py [--seeds 20] [--days 40] [--explore temperature] [--quick]
    python benchmarks/curriculum.py --model embedded [--seeds 3] [--keep DIR] [--quick] [FLAGS OF train_mmo.py]

A policy with a weight for each word, verb and form decides in the real simulated market: its hours, agents,
exploration, guard and offline judge are the trainer's own, and so are credit, arms, draws and the aim. A reply is one
of the offers, or one of the same lines with a mistake in it. Untrained, a quarter of the replies is valid in the first
stage and fewer in the second, BUY is preferred, no word means anything, and any market is as good as any other.

A day of 24 hours is played with one policy and trained in steps of twelve groups (a gradient norm of at most 1, ART's
scale of a batch). Stage ``several`` is reached when for three steps, in 100 hours of another world, 95 % of the replies
are valid and, of the valid ones about a market that the news points for, 0.10 more go its way than untrained. Printed:
the tokens trained and played until then (a seed that does not get there counts with all its days), the share of uniform
play's over all seeds and seed by seed, and the least share of the draws that an arm had. ``hardest`` is ``--curriculum
off``: the last arm alone. What any schedule could reach is bounded by ``--plays uniform oracle``: every day it tries an
even day and one of mostly each arm, looks at the test, and keeps the best, lucky draws included. Other plays have
shares that stay.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from data_bridge.window_ids import start_of, window_of, windows_from
from tests.builders_played import group_of
from trainer.judge.outcome import OutcomeJudge
from trainer.run.closed_loop import exploration_of
from trainer.statistics.curriculum import FLOOR, Arm, Result, chances, draw, equal_chances, moved
from trainer.train.credit import beside_the_game, history_of
from trainer.train.selection import spread
from trainer.types import JudgedGroup
from trainer.world.actions import BUY, HOLD, NO, SELL, YES, Decision
from trainer.world.agents import EXPLORER, AgentAnswer, Ask, Exploring, any_offer, model_cast, readings, sized
from trainer.world.arms import arms_of, markets_of
from trainer.world.chance import unit
from trainer.world.exchange import Exchange
from trainer.world.guard import DEFAULT_LIMITS
from trainer.world.market import Market, StageName
from trainer.world.observation import Observation, observe
from trainer.world.play import own_lives
from trainer.world.player import PlayedHour, Player

AGENTS, GROUPS, HOURS, TOKENS = 8, 12, 24, 8
"""Of an hour, a step, a day, and a reply."""
VALID, ABOVE_BASE, HELD = 0.95, 0.10, 3
FIRST = "2026-03-02T00:00"
How = Literal["uniform", "auto", "hardest", "oracle", "mostly one", "one and several", "mostly several"]
FIXED: Mapping[str, Sequence[float]] = {
    "mostly one": (0.85, 0.05, 0.05, 0.05),
    "one and several": (0.45, 0.05, 0.45, 0.05),
    "mostly several": (0.05, 0.05, 0.85, 0.05),
}
"""Shares that stay: of the first and the second stage, each without and with luck."""

FORM = 2.0
"""How much faster the form of a reply is learnt than its words, as by the embedded model."""
_VERBS = {BUY: 0, SELL: 1, YES: 2, NO: 3, HOLD: 4}
_FORMS = {"one": 5, "several": 6}
_FORM, _NAMED, _WORDS, SIZE = 7, 8, 9, 9 + 256


@dataclass(frozen=True, slots=True)
class Choices:
    """What can be replied in an hour, each with its features; the second half are the first with a mistake."""

    texts: list[str]
    features: Any
    told: Any
    """Of the valid ones, which trade a market of which the news says something; None if it points nowhere."""
    follows: Any
    """Of the valid ones, which trade it the way that the news points."""


def choices(seen: Observation, stage: StageName) -> Choices:
    decisions = [sized(offer, DEFAULT_LIMITS) for offer in seen.offers]
    valid = np.stack([_features(decision, seen) for decision in decisions])
    wrong = valid.copy()
    valid[:, _FORM] = valid[:, _FORMS[stage]] = FORM
    said = readings(seen)
    follows = np.array([said.get(one.market) == one.direction and one.verb != HOLD for one in decisions])
    texts = [str(decision) for decision in decisions]
    told = np.array([one.market in said for one in decisions]) if said else None
    return Choices([*texts, *(f"I would {text}" for text in texts)], np.concatenate([valid, wrong]), told, follows)


def _features(decision: Decision, seen: Observation) -> Any:
    """The verb; whether the news names the market; and each word of that news, for or against the market."""
    found = np.zeros(SIZE)
    found[_VERBS[decision.verb]] = 1.0
    subjects = {quote.symbol: quote.symbol for quote in seen.quotes}
    subjects |= {question.label: question.question for question in seen.questions}
    subject = subjects.get(decision.market)
    for text in seen.headlines:
        if subject is not None and subject in text:
            found[_NAMED] = 1.0
            for word in text.replace(subject, "").lower().split():
                found[_WORDS + int(unit("word", word) * 256)] += decision.direction / 2
    return found


@dataclass
class SoftmaxPolicy:
    """Answers as a model does; ``stage`` is that of the market it plays in."""

    weights: Any
    stage: StageName = "one"
    known: dict[tuple[str, str], tuple[Choices, Any]] = field(default_factory=dict)

    def at(self, seen: Observation, stage: StageName) -> tuple[Choices, Any]:
        key = (seen.window_id, stage)
        if key not in self.known:
            made = choices(seen, stage)
            self.known[key] = made, likelihood(self.weights, made)
        return self.known[key]

    async def answer(self, ask: Ask) -> AgentAnswer:
        stage: StageName = "several" if ask.seen.questions else "one"
        made, likely = self.at(ask.seen, stage)
        if ask.explores and ask.exploration.how == "answers":
            return AgentAnswer(str(any_offer(ask)), EXPLORER, 0.0, 0)
        place = int(np.searchsorted(np.cumsum(likely), unit(*ask.key, "sampling") * likely.sum(), side="right"))
        return AgentAnswer(made.texts[place], "softmax", 1.0, 0)


def likelihood(weights: Any, made: Choices) -> Any:
    scores = made.features @ weights
    likely = np.exp(scores - scores.max())
    return likely / likely.sum()


def untrained(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    weights = rng.normal(scale=0.1, size=SIZE)
    weights[_VERBS[BUY]] += 1.0
    weights[_FORM] -= 0.8 / FORM
    weights[_FORMS["one"]] -= 0.2 / FORM
    weights[_FORMS["several"]] -= 1.0 / FORM
    return weights


def gradient(policy: SoftmaxPolicy, hours: Sequence[PlayedHour], groups: Sequence[JudgedGroup]) -> tuple[Any, int]:
    """The mean over groups of advantage times the slope of the log-probability, at ART's scale; tokens trained."""
    gains = [np.array([one.advantage for one in rewards]) for rewards in history_of(groups)]
    scale = np.abs(np.concatenate(gains)).mean()
    total, tokens = np.zeros(SIZE), 0
    for played, judged, gain in zip(hours, groups, gains, strict=True):
        beside = {one.trajectory_id for one in beside_the_game(judged)}
        seen = played.agents[0].steps[0].seen
        made, likely = policy.at(seen, played.hour.stage.name)
        mean, trained = likely @ made.features, 0
        own = np.zeros(SIZE)
        for life, member, advantage in zip(played.agents, judged.group.trajectories, gain, strict=True):
            if member.trajectory_id in beside:
                continue
            place = made.texts.index(life.steps[0].answer.text)
            own += advantage / scale * (made.features[place] - mean)
            trained += 1
        total += own / len(gain)
        tokens += TOKENS * trained
    return total / len(groups), tokens


@dataclass(frozen=True, slots=True)
class Reading:
    valid: float
    direction: float
    """Of the valid replies about a market that the news points for, the share in its direction."""
    follows: float
    """The share of all valid replies that trade such a market in its direction."""


def examine(weights: Any, hours: Sequence[tuple[Observation, StageName]]) -> Reading:
    """Exact: by what the policy would reply, and not by a sample."""
    policy = SoftmaxPolicy(weights)
    valid, right, follows = [], [], []
    for seen, stage in hours:
        made, likely = policy.at(seen, stage)
        own = likely[: len(likely) // 2]
        valid.append(own.sum())
        if made.told is not None:
            right.append(own[made.follows].sum() / own[made.told].sum())
            follows.append(own[made.follows].sum() / own.sum())
    return Reading(float(np.mean(valid)), float(np.mean(right)), float(np.mean(follows)))


def unseen_hours(seed: int, number: int = 100) -> list[tuple[Observation, StageName]]:
    market = Market(50_000 + seed, stage="several")
    hours = [market.hour(window_id) for window_id in windows_from(FIRST, number)]
    return [(observe(hour, 0, Exchange(hour).quotes(0)), "several") for hour in hours]


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens until the stage is reached, and how often each arm was drawn."""

    trained: int
    played: int
    days: int
    is_reached: bool
    draws: Counter[str]
    aims: tuple[float, ...]
    base: Reading
    latest: Reading


def succeeded(played: PlayedHour) -> Result:
    own = own_lives(played)
    return Result(sum(life.pnl > 0 for life in own), len(own))


@dataclass(frozen=True, slots=True)
class Day:
    """What was played on a day, and the weights and trained tokens of each step that came of it."""

    chosen: Sequence[Arm]
    results: Sequence[Result]
    steps: Sequence[tuple[Any, int]]


@dataclass(frozen=True, slots=True)
class Learner:
    """One policy that learns day by day."""

    seed: int
    rate: float
    explore: Exploring
    markets: Mapping[str, Market]

    async def day(self, number: int, weights: Any, chosen: Sequence[Arm]) -> Day:
        """Play the hours of a day with one policy, then train on them step by step."""
        windows, policy, judge = self.windows(number), SoftmaxPolicy(weights), OutcomeJudge()
        hours: list[PlayedHour] = []
        for window_id, arm in zip(windows, chosen, strict=True):
            player = Player(self.markets[arm.name], model_cast(AGENTS, self.seed, policy), exploration_of(self.explore))
            index = number * HOURS + len(hours)
            hours += [one async for one in player.play([window_id], first_index=index)]
        verdicts = [await judge.judge(group_of(one)) for one in hours]
        kept = [
            (hour, one)
            for hour, one in zip(hours, verdicts, strict=True)
            if isinstance(one, JudgedGroup) and spread(one.scores)
        ]
        steps = []
        for start in range(0, len(kept), GROUPS):
            part = kept[start : start + GROUPS]
            policy.weights = weights
            policy.known.clear()
            slope, tokens = gradient(policy, [one for one, _ in part], [one for _, one in part])
            weights = weights + self.rate * slope / max(1.0, float(np.linalg.norm(slope)))
            steps.append((weights, tokens))
        return Day(chosen, [succeeded(one) for one in hours], steps)

    def windows(self, number: int) -> Sequence[str]:
        return windows_from(window_of(start_of(FIRST) + timedelta(hours=number * HOURS)), HOURS)


def mostly(place: int, number: int) -> list[float]:
    """Chances that leave every arm but one its floor."""
    return [1 - FLOOR * (number - 1) if one == place else FLOOR for one in range(number)]


async def learn(
    seed: int, how: How, days: int, rate: float, luck: float = 0.2, explore: Exploring = "answers"
) -> Found:
    markets = markets_of(Market(seed, luck, "several"))
    arms, learner = arms_of(list(markets)), Learner(seed, rate, explore, markets)
    weights, asked = untrained(seed), unseen_hours(seed)
    base = examine(weights, asked)
    aim, trained, played_tokens, held = 0.0, 0, 0, 0
    draws, aims, now = Counter[str](), [0.0], base
    for number in range(days):
        windows = learner.windows(number)
        tried: list[Day] = []
        for likely in _considered(how, arms, aim):
            chosen = [arms[-1]] * HOURS if how == "hardest" else draw(arms, likely, draws, windows, f"{seed}")
            tried.append(await learner.day(number, weights, chosen))
        day = max(tried, key=lambda one: _progress(one, asked, base)) if len(tried) > 1 else tried[0]
        draws.update(arm.name for arm in day.chosen)
        played_tokens += TOKENS * sum(one.tried for one in day.results)
        aim = moved(aim, day.results)
        aims.append(aim)
        for weights, tokens in day.steps:
            trained += tokens
            now = examine(weights, asked)
            held = held + 1 if now.valid >= VALID and now.direction >= base.direction + ABOVE_BASE else 0
            if held == HELD:
                return Found(trained, played_tokens, number + 1, True, draws, tuple(aims), base, now)
    return Found(trained, played_tokens, days, False, draws, tuple(aims), base, now)


def _considered(how: How, arms: Sequence[Arm], aim: float) -> list[list[float]]:
    """The chances to draw a day by; those among which the oracle chooses."""
    if how == "oracle":
        return [equal_chances(arms), *(mostly(place, len(arms)) for place in range(len(arms)))]
    if how in FIXED:
        return [list(FIXED[how])]
    return [chances(arms, aim) if how == "auto" else equal_chances(arms)]


def _progress(day: Day, asked: Sequence[tuple[Observation, StageName]], base: Reading) -> float:
    """How near a day comes to the stage: what no curriculum can know."""
    if not day.steps:
        return -1.0
    now = examine(day.steps[-1][0], asked)
    return min(now.valid, VALID) / VALID + min((now.direction - base.direction) / ABOVE_BASE, 1.0)


def told(values: Sequence[float], digits: int = 1) -> str:
    found = np.array(values, dtype=float)
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
    return f"{found.mean():.{digits}f} ± {error:.{digits}f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--days", type=int, default=40, help="after which a seed has not reached the stage")
    parser.add_argument("--rate", type=float, default=4.0, help="length of a step")
    parser.add_argument("--luck", type=float, default=0.2)
    parser.add_argument("--explore", choices=("answers", "temperature"), default="answers")
    parser.add_argument("--plays", nargs="+", choices=get_args(How), default=("uniform", "auto", "hardest"))
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--model", choices=("softmax", "embedded"), default="softmax")
    parser.add_argument("--keep", type=Path, help="embedded: folder for the homes; unset: a temporary one")
    options, flags = parser.parse_known_args()
    if options.model == "embedded":
        from curriculum_embedded import compare

        if options.quick:
            options.seeds, flags = 1, [*flags, "--iterations", "1", "--windows-per-iteration", "4"]
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        compare(seeds, VALID, ABOVE_BASE, flags or ["--iterations", "12"], options.keep, quick=options.quick)
        return 0
    if options.quick:
        options.seeds = 3
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    found: dict[How, list[Found]] = {}
    print(
        f"{'play':16s} {'reached':>7s} {'days':>14s} {'tokens trained':>19s} {'tokens played':>19s}"
        f" {'share of trained':>17s} {'seed by seed':>14s} {'least arm':>10s}"
    )
    for how in options.plays:
        own = found[how] = [
            asyncio.run(learn(seed, how, options.days, options.rate, options.luck, options.explore)) for seed in seeds
        ]
        even = found.get("uniform", own)
        whole = sum(one.trained for one in own) / sum(one.trained for one in even)
        shares = [one.trained / other.trained for one, other in zip(own, even, strict=True)]
        least = min(min(one.draws.values()) / one.draws.total() for one in own)
        print(
            f"{how:16s} {sum(one.is_reached for one in own):3d}/{len(own):<3d} {told([one.days for one in own]):>14s}"
            f" {told([one.trained for one in own]):>19s} {told([one.played for one in own]):>19s}"
            f" {whole:17.2f} {told(shares, 2):>14s} {least:10.3f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
