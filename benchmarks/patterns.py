"""How fast a planted error disappears, with and without error patterns in what is replayed and in the step.

    python benchmarks/patterns.py [--seeds 20] [--kinds blocked weak] [--luck 0.2] [--rate 4] [--most 3] [--quick]
    python benchmarks/patterns.py --kinds innocent --luck 1 --preference 0

The policy of ``replay.py`` (a weight for each word, a first preference for one answer), with a third thing to say. One
hour in ten is of a kind in which it does that with a chance of 0.2, so in 2 % of all trajectories:

- ``blocked``: the game's guard refuses it (``order_limit``): nobody trains the reply, the others gain;
- ``weak``: a valid order that is never right, which an LLM judge names in its own words, beside what it says of all
  other replies below the mean ("against the news"), which is more frequent;
- ``innocent``: the same, but it is right as often as wrong: a control. At luck 1 no answer is better than another, and
  feedback that unlearns this one unlearns what chance called wrong.

Besides, one action in a hundred fails by chance with a message that is like no other. Faults, patterns and their
significance, marks, priorities, draws, weights, uses, credit and who is trained are the trainer's own; the step is that
of ``replay.py``. Arms: without and with replay; with patterns as priority of the draws, as weights of the step
(``--pattern-weight``, here ``--most``), or both.

Printed: the steps until the planted error is half as frequent in its hours, the mean over seeds with its standard
error; the share of the steps of the same arm without feedback, seed by seed and of the means; the share of seeds in
which the pattern was found before; after 40 steps the held-out score, which more of one kind of hour might cost, and
the chance of the planted answer; the mean length of a step; the share of groups that counted more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from replay import LARGEST, PLACES, STALE, WORDS, seen, told

from data_bridge.window_ids import windows_from
from tests.builders import make_action, make_outcomes, make_step, make_trajectory
from trainer.config.training import ReplaySettings, ReplayShareSettings
from trainer.ledger.observations import marked_groups
from trainer.ledger.replays import Replayable
from trainer.patterns.faults import Observed, observed, weaknesses
from trainer.patterns.significance import ErrorPattern, patterns_of
from trainer.train.credit import RULE, beside_the_game, history_of
from trainer.train.pattern_weights import pattern_weights
from trainer.train.replay import draw, places_of, priorities
from trainer.train.selection import spread
from trainer.types import Group, JudgedGroup, JudgeIdentity, Verdict

AGENTS, OFTEN, CHANCE, BY_CHANCE = 8, 0.1, 0.2, 0.01
LONGEST, SCORED_AT = 200, 40
Kind = Literal["blocked", "weak", "innocent"]
OUTCOMES = make_outcomes()


@dataclass(frozen=True, slots=True)
class Arm:
    """What is on: prioritised replay, its draws by patterns, the weights of a step by patterns."""

    replays: bool = False
    draws: bool = False
    weighs: bool = False


ARMS = {
    "no replay": Arm(),
    "no replay, weights": Arm(weighs=True),
    "replay": Arm(replays=True),
    "replay, draws": Arm(replays=True, draws=True),
    "replay, weights": Arm(replays=True, weighs=True),
    "replay, both": Arm(replays=True, draws=True, weighs=True),
}
WINDOWS = windows_from("2026-11-02T00:00", 7 * 24)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried on one seed after the other."""

    kind: Kind
    luck: float = 0.2
    rate: float = 4.0
    preference: float = 2.5
    most: float = 3.0
    """``--pattern-weight``."""


@dataclass(frozen=True, slots=True)
class Played:
    """One judged hour: what the agents saw and said, how likely that was, and the policy's step."""

    features: Any
    said: Any
    likely: Any
    judged: JudgedGroup
    step: int


@dataclass(slots=True)
class Policy:
    """A softmax over BUY, SELL and the planted error, linear in the words, a one, and whether the hour is of its kind.

    Before it is trained it reads nothing and prefers BUY.
    """

    preference: float
    weights: Any = field(init=False)

    def __post_init__(self) -> None:
        self.weights = np.zeros((3, WORDS + 2))
        self.weights[0, WORDS] = self.preference
        others = np.exp(self.preference) + 1
        self.weights[2, WORDS] = -4.0
        self.weights[2, WORDS + 1] = 4.0 + np.log(CHANCE / (1 - CHANCE) * others)

    def chances(self, features: Any) -> Any:
        logits = features @ self.weights.T
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)


def hours(rng: Any, number: int, of_kind: Any) -> Any:
    return np.concatenate([seen(rng, number), np.broadcast_to(of_kind, (number,))[:, None]], axis=1)


class World:
    """Plays and judges hours."""

    def __init__(self, trial: Trial, rng: Any) -> None:
        self._trial, self._rng = trial, rng
        self.truth = np.append(rng.normal(size=WORDS), [0.0, 0.0])
        is_llm = trial.kind != "blocked"
        self._identity = JudgeIdentity("simulated", "right", "1", "1", is_llm=is_llm)

    def hour(self, number: int, policy: Policy, step: int) -> Played:
        rng = self._rng
        features = hours(rng, 1, float(rng.random() < OFTEN))[0]
        up = bool(features @ self.truth > 0) if rng.random() >= self._trial.luck else bool(rng.integers(2))
        known = policy.chances(features)
        said = rng.choice(3, size=AGENTS, p=known)
        window = WINDOWS[number % len(WINDOWS)]
        members, verdicts = [], []
        for agent, one in enumerate(said):
            error = self._error(int(one))
            name, kind = f"{number}-{agent}", "SELL" if one == 1 else "BUY"
            action = make_action(kind, success=error is None, error=error)
            members.append(
                make_trajectory(f"agent-{agent}", window_id=window, trajectory_id=name,
                                steps=[make_step(calls=[], action=action)])
            )  # fmt: skip
            is_right = error is None and (self._by_chance() if one == 2 else (one == 0) == up)
            verdicts.append(Verdict(name, float(is_right), 0.0, self._said_of(int(one), is_right)))
        group = Group(f"hour-{number}", window, tuple(members), OUTCOMES)
        return Played(features, said, known[said], JudgedGroup(group, tuple(verdicts), self._identity, "key"), step)

    def _by_chance(self) -> bool:
        """Whether the planted answer is right: never, unless it is no error at all."""
        return self._trial.kind == "innocent" and bool(self._rng.integers(2))

    def _error(self, said: int) -> str | None:
        """Why the action fails, if it does."""
        if said == 2 and self._trial.kind == "blocked":
            return f"order_limit: {self._rng.integers(21, 90)}% is more than 20%"
        if self._rng.random() < BY_CHANCE:
            return " ".join("".join(self._rng.choice(list("bdfgklmnprstvz"), size=6)) for _ in range(5))
        return None

    def _said_of(self, said: int, is_right: bool) -> str:
        if is_right:
            return "It followed the news."
        if said == 2:
            return f"Staked the whole balance of {self._rng.integers(100, 9999)} dollars on one order."
        return f"Traded against the news of ${'ABCD'[self._rng.integers(4)]} in minute {self._rng.integers(60)}."


def stepped(policy: Policy, batch: Sequence[Played], step: int, trial: Trial, emphasis: Mapping[str, float]) -> float:
    """A step as in ``replay.py``, with the trainer's own credit; who is beside the game is not trained. Its length."""
    rule = replace(RULE, most_emphasis=trial.most)
    rewards = history_of([one.judged for one in batch], rule, emphasis=emphasis)
    gains = [np.array([one.advantage for one in of_group]) for of_group in rewards]
    scale = np.abs(np.concatenate(gains)).mean()
    total = np.zeros_like(policy.weights)
    for played, gain in zip(batch, gains, strict=True):
        known = policy.chances(played.features)
        ratio = np.ones(AGENTS) if step - played.step > STALE else known[played.said] / played.likely
        ratio = np.where(gain < 0, np.minimum(ratio, LARGEST), ratio)
        kept = ~(((gain > 0) & (ratio > 1.2)) | ((gain < 0) & (ratio < 0.8)))
        beside = {one.trajectory_id for one in beside_the_game(played.judged)}
        kept &= np.array([one.trajectory_id not in beside for one in played.judged.group.trajectories])
        slopes = np.eye(3)[played.said] - known
        total += ((gain / scale * ratio * kept)[:, None] * slopes).mean(axis=0)[:, None] * played.features
    mean = total / len(batch)
    moved = trial.rate * mean / max(1.0, float(np.linalg.norm(mean)))
    policy.weights = policy.weights + moved
    return float(np.linalg.norm(moved))


@dataclass(frozen=True, slots=True)
class Outcome:
    steps: int
    """Until the error is half as frequent."""
    found: bool
    """Whether a pattern of the planted error was significant before."""
    score: float
    chance: float
    """Of the planted answer in its hours, when the score is taken."""
    of_kind: float
    """The share of hours of the planted kind among those that were replayed."""
    weighed: float
    """The share of a step's groups that counted more."""
    length: float
    """Of the steps until then, on average."""


@dataclass(slots=True)
class Buffer:
    """What was trained, as the ledger knows it."""

    settings: ReplaySettings
    played: dict[str, Played] = field(default_factory=dict)
    groups: list[Replayable] = field(default_factory=list)
    uses: dict[str, int] = field(default_factory=dict)

    def left(self, step: int) -> list[Replayable]:
        most, lag = self.settings.replay_uses, self.settings.replay_lag
        return [one for one in self.groups if step - one.step <= lag and self.uses[one.group_id] < most]

    def _recent(self, step: int) -> list[tuple[Replayable, JudgedGroup]]:
        recent = [one for one in self.groups if step - one.step <= self.settings.replay_lag]
        return [(one, self.played[one.group_id].judged) for one in recent]

    def observed(self, step: int) -> list[Observed]:
        """What went wrong in what was trained within the lag: as the ledger reads it."""
        judged = [group for _, group in self._recent(step)]
        rows = [observed(member) for group in judged for member in group.group.trajectories]
        return rows + [row for group in judged for row in weaknesses(group)]

    def patterns(self, step: int) -> tuple[tuple[ErrorPattern, ...], dict[str, tuple[str, str]]]:
        """The patterns in it, and whose group a trajectory is of."""
        recent = self._recent(step)
        names = {m.trajectory_id: (one.batch_id, one.group_id) for one, g in recent for m in g.group.trajectories}
        return patterns_of(self.observed(step)), names

    def trained(self, fresh: Sequence[JudgedGroup], names: Sequence[str], step: int) -> None:
        for one in fresh:
            name = one.group.group_id
            self.groups.append(Replayable(len(self.groups), f"batch-{step}", name, step, spread(one.scores), 1))
        for name in names:
            self.uses[name] = self.uses.get(name, 0) + 1


def is_planted(pattern: ErrorPattern) -> bool:
    return pattern.template == "order_limit" or pattern.template.startswith("Staked the whole balance")


def trained(seed: int, trial: Trial, arm: Arm, scored_at: int = SCORED_AT, longest: int = LONGEST) -> Outcome:
    """Train until the error is half as frequent, and at least until the score is taken."""
    rng = np.random.default_rng(seed)
    how: Literal["off", "prioritised"] = "prioritised" if arm.replays else "off"
    world, policy, buffer = World(trial, rng), Policy(trial.preference), Buffer(ReplaySettings(replay=how))
    places = places_of(ReplayShareSettings(replay=how), PLACES)
    asked = hours(np.random.default_rng(10_000 + seed), 500, 1.0)
    half, found, score, left_over = 0, False, 0.0, 0.0
    replayed, weighed, lengths = list[float](), list[float](), list[float]()
    for step, fresh in enumerate(_collected(world, policy, places, buffer)):
        left = buffer.left(step)
        again: list[Replayable] = []
        if left and fresh.empty:
            marks: Any = marked_groups(*buffer.patterns(step)) if arm.draws else ()
            again = draw(left, priorities(left, buffer.settings, step, marks), fresh.empty, f"{seed}:{step}")
        replayed += [float(buffer.played[one.group_id].features[-1]) for one in again]
        names_of = [one.group.group_id for one in fresh.groups] + [one.group_id for one in again]
        batch = [buffer.played[name] for name in names_of]
        emphasis: dict[str, float] = {}
        if arm.weighs:
            groups = [one.judged for one in batch]
            weights = pattern_weights(groups, buffer.observed(step), trial.most)
            emphasis = weights.of_members(groups)
            weighed.append(sum(one > 1 for one in weights.of_groups) / len(groups))
        lengths.append(stepped(policy, batch, step, trial, emphasis))
        buffer.trained(fresh.groups, names_of, step + 1)
        if not half and not found:
            found = any(is_planted(one) and one.significant for one in buffer.patterns(step)[0])
        chance = float(policy.chances(asked)[:, 2].mean())
        if not half and chance <= CHANCE / 2:
            half = step + 1
        if step + 1 == scored_at:
            score, left_over = held_out(policy, world, seed), chance
        if step + 1 >= longest or (half and step + 1 >= scored_at):
            break
    mean = [float(np.mean(one)) if one else 0.0 for one in (replayed, weighed, lengths[:scored_at])]
    return Outcome(half or longest, found, score, left_over, *mean)


def _collected(world: World, policy: Policy, places: Any, buffer: Buffer) -> Iterator[Any]:
    """Steps as they fill: hours are played by the policy of the moment."""
    step = number = 0
    while True:
        played = world.hour(number, policy, step)
        number += 1
        judged = played.judged
        buffer.played[judged.group.group_id] = played
        ready = places.take(judged if spread(judged.scores) > 0 else None, judged.group)
        if ready is not None:
            yield ready
            step += 1


def held_out(policy: Policy, world: World, seed: int) -> float:
    """The chance of the right answer in unseen hours, one in ten of the planted kind."""
    rng = np.random.default_rng(20_000 + seed)
    features = hours(rng, 2000, (rng.random(2000) < OFTEN).astype(float))
    known = policy.chances(features)
    return float(np.where(features @ world.truth > 0, known[:, 0], known[:, 1]).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=("blocked", "weak", "innocent"), default=("blocked", "weak"))
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=tuple(ARMS))
    parser.add_argument("--luck", type=float, default=0.2)
    parser.add_argument("--rate", type=float, default=4.0, help="length of a step")
    parser.add_argument("--preference", type=float, default=2.5)
    parser.add_argument("--most", type=float, default=3.0, help="--pattern-weight")
    parser.add_argument("--quick", action="store_true", help="4 seeds")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + (4 if options.quick else options.seeds))
    print("error    arm                  steps to half  share: seed by seed  of means  found  "
          "after 40: score   chance of it    step length   weighted")  # fmt: skip
    for kind in options.kinds:
        trial = Trial(kind, options.luck, options.rate, options.preference, options.most)
        runs = {name: [trained(seed, trial, ARMS[name]) for seed in seeds] for name in options.arms}
        for name, found in runs.items():
            print(_line(kind, name, found, runs.get("replay" if ARMS[name].replays else "no replay")), flush=True)
    return 0


def _line(kind: str, name: str, found: Sequence[Outcome], without: Sequence[Outcome] | None) -> str:
    steps = np.array([one.steps for one in found], dtype=float)
    share = of_means = ""
    if without is not None:
        before = np.array([one.steps for one in without], dtype=float)
        share, of_means = told(steps / before), f"{steps.mean() / before.mean():.2f}"
    columns = [told(np.array([getattr(one, of) for one in found])) for of in ("score", "chance", "length")]
    return (
        f"{kind:8} {name:20} {steps.mean():5.1f} ± {steps.std(ddof=1) / np.sqrt(len(steps)):3.1f}  {share:19} "
        f"{of_means:8}  {np.mean([one.found for one in found]):5.2f}  {'  '.join(columns)}"
        f"  {np.mean([one.weighed for one in found]):.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
