"""The frozen week of ``off_policy.py`` on a language model: drift under random verdicts, reading under true ones.

    python benchmarks/language_week.py --keep DIR [--seeds 3] [--steps 17] [--groups 4] [--ways ...] [--quick]

The embedded model (``--model`` names another) plays hours of the simulated market: it answers with one of two lines,
BUY or SELL, as likely as it says them; one agent of a group is another model, right in three hours of four. Credit,
conversion, scoring, packing, ART's loss and Adam are those of a training step; the ways are those of ``off_policy.py``.
Balance and pace of the CPU backend are not part of it, so that nothing but the ways differs.

Every run is one way, one kind of verdicts and one seed. Its result is a file in ``--keep``: the command can be stopped
at any time, makes the runs that are missing when it is started again, and prints all that are there. Measured in hours
that nobody played, with the news balanced (``trainer.world.questions``): the KL of a whole reply from the policy that
played, exact over the vocabulary; the chance of the right line beside the wrong one; the AUC of BUY against SELL for
good news against bad, which a preference for one answer does not touch. And of all tokens but those of the first step
the share whose ratio is exactly 1, beside the shares of foreign ones and of own ones that were certain (a logged
log-probability of exactly 0, whose ratio is 1 until the model doubts them).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from off_policy import AGENTS, WAYS, Judging, Way, figure, forgotten, judged, make_step_on, step_settings

from data_bridge.models import AgentTrajectory, ChatMessage
from data_bridge.scoring import Scored, ScoreRequest
from data_bridge.window_ids import start_of, window_of
from tests.builders import make_action, make_call, make_step, make_trajectory
from tests.builders_training import make_trainee
from trainer.inference.base_model import EMBEDDED, model_directory, prompt_tokens
from trainer.inference.policy import CpuPolicy
from trainer.train.backends.art_interface import import_art
from trainer.world.actions import BUY, SELL, Decision
from trainer.world.exchange import Exchange
from trainer.world.market import Market
from trainer.world.observation import messages_for, observe
from trainer.world.questions import Question, questions

VERBS = (BUY, SELL)
FOREIGN_RIGHT = 0.75


@dataclass(frozen=True, slots=True)
class Point:
    """A decision point: what is shown, the two lines, how likely the policy says each, and which is right."""

    messages: tuple[ChatMessage, ...]
    lines: tuple[str, str]
    known: tuple[Scored, Scored]
    right: int

    @property
    def chances(self) -> list[float]:
        found: list[float] = torch.tensor([sum(one.logprobs) for one in self.known]).softmax(dim=0).tolist()
        return found

    def call(self, chosen: int, model: str, *, is_foreign: bool) -> Any:
        tokens: dict[str, Any] = {
            "completion_token_ids": list(self.known[chosen].token_ids),
            "completion_logprobs": list(self.known[chosen].logprobs),
        }
        return make_call(
            self.lines[chosen], model=model, messages=list(self.messages), **({} if is_foreign else tokens)
        )


@dataclass(slots=True)
class LanguageWeek:
    """Plays hours of the simulated market with a language model, one after the other."""

    policy: CpuPolicy
    seed: int
    luck: float = 0.2
    hour: int = 0
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"play {self.seed}")

    def points(self, number: int) -> list[Point]:
        """The next hours, read together: what their prompts begin with is read once."""
        market, shown = Market(self.seed, luck=self.luck), []
        for _ in range(number):
            hour = market.hour(window_of(start_of("2026-11-01T00:00") + timedelta(hours=self.hour)))
            self.hour += 1
            messages = tuple(messages_for(observe(hour, 0, Exchange(hour).quotes(0)), hour.stage.name))
            lines = (str(Decision(BUY, hour.tickers[0].symbol, 20)), str(Decision(SELL, hour.tickers[0].symbol, 20)))
            shown.append((messages, lines, int(hour.tickers[0].end_price <= hour.tickers[0].start_price)))
        scored = self.policy.score([ScoreRequest(messages, line) for messages, lines, _ in shown for line in lines])
        known = [one for one in scored if one is not None]
        assert len(known) == 2 * number
        return [
            Point(messages, lines, (known[2 * place], known[2 * place + 1]), right)
            for place, (messages, lines, right) in enumerate(shown)
        ]

    def groups(self, number: int, step: int) -> list[tuple[list[AgentTrajectory], list[bool]]]:
        """Who said what in the next hours, and who was right."""
        return [
            self._group(point, f"{step}-{self.hour}-{place}", step) for place, point in enumerate(self.points(number))
        ]

    def _group(self, point: Point, name: str, step: int) -> tuple[list[AgentTrajectory], list[bool]]:
        members, who = [], []
        for agent in range(AGENTS):
            is_foreign = agent == 0
            chosen = self.chance.choices((0, 1), weights=point.chances)[0]
            if is_foreign:
                chosen = point.right if self.chance.random() < FOREIGN_RIGHT else 1 - point.right
            call = point.call(chosen, "gpt-9" if is_foreign else f"hindsight@step{step}", is_foreign=is_foreign)
            one = make_step(calls=[call], action=make_action(VERBS[chosen]))
            members.append(make_trajectory(f"agent-{agent}", trajectory_id=f"{name}-{agent}", steps=[one]))
            who.append(chosen == point.right)
        return members, who


@dataclass(slots=True)
class Reader:
    """What a policy says in hours that nobody played, beside the untrained one."""

    asked: tuple[Question, ...]
    base: dict[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def read(self, policy: CpuPolicy) -> tuple[float, float, float]:
        """KL of a whole reply from the untrained policy, chance of the right line, AUC."""
        from scipy.stats import mannwhitneyu

        drift, right, apart = [], [], []
        by_beginning = sorted(self.asked, key=lambda one: str(one.messages[:-1]))
        for one in by_beginning:
            prompt = tuple(prompt_tokens(policy.tokenizer, one.messages))
            replies = self._replies(policy, one)
            beginning = self._beginning(policy, one, prompt)
            now = policy.read_replies(prompt, replies, beginning)
            if one.headline not in self.base:
                with policy.as_base():
                    self.base[one.headline] = policy.read_replies(prompt, replies, beginning)
            lengths = [len(reply) for reply in replies]
            likely = torch.stack([part.sum() for part in now.logprobs.split_with_sizes(lengths)])
            moved = policy.divergence(now, self.base[one.headline]).split_with_sizes(lengths)
            chances = likely.softmax(dim=0)
            drift.append(sum(float(chance * part.sum()) for chance, part in zip(chances, moved, strict=True)))
            right.append(float(chances[0 if one.direction > 0 else 1]))
            apart.append(float(likely[0] - likely[1]))
        good = [gap for gap, one in zip(apart, by_beginning, strict=True) if one.direction > 0]
        bad = [gap for gap, one in zip(apart, by_beginning, strict=True) if one.direction < 0]
        area = float(mannwhitneyu(good, bad).statistic) / len(good) / len(bad)
        return fmean(drift), fmean(right), area

    def _replies(self, policy: CpuPolicy, one: Question) -> list[tuple[int, ...]]:
        asked = [ScoreRequest(one.messages, one.answer(way)) for way in (1, -1)]
        found = [request.tokens(policy.tokenizer, end=policy._end, ends=policy._ends) for request in asked]
        return [tuple(reply.token_ids) for reply in found if reply is not None]

    def _beginning(self, policy: CpuPolicy, one: Question, prompt: tuple[int, ...]) -> int:
        """How many tokens are the same in all hours of that day: those up to the last message."""
        others = [prompt_tokens(policy.tokenizer, other.messages) for other in self.asked
                  if other.messages[:-1] == one.messages[:-1] and other is not one]  # fmt: skip
        alike = [next((n for n, pair in enumerate(zip(prompt, other, strict=False)) if pair[0] != pair[1]), 0)
                 for other in others]  # fmt: skip
        return min(alike, default=0)


@dataclass(slots=True)
class Result:
    """Of one run, as it is kept."""

    settings: dict[str, Any]
    drift: float = math.nan
    right: float = math.nan
    area: float = math.nan
    tokens: float = 0.0
    ratio_one: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    certain: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0


def certain_share(hours: Sequence[tuple[Sequence[AgentTrajectory], Sequence[bool]]]) -> float:
    """The share of the own tokens of these hours that were certain when they were said."""
    calls = [one.steps[0].llm_calls[0] for members, _ in hours for one in members]
    logged = [value for call in calls for value in call.completion_logprobs or ()]
    return fmean(value == 0.0 for value in logged)


async def train(policy: CpuPolicy, way: Way, how: Judging, seed: int, options: argparse.Namespace) -> Result:
    started = time.process_time()
    result = Result(settings_of(options))
    trainee = make_trainee(min_spread=0.0, max_staleness=10**6 if way == "logged" else 4)
    settings = step_settings(trainee, options)
    week, judge = LanguageWeek(policy, seed), random.Random(f"judge {seed}")
    log = [] if way == "fresh" else [week.groups(options.groups, 0) for _ in range(options.steps)]
    for step in range(options.steps):
        hours = log[step] if log else week.groups(options.groups, step)
        certain = certain_share(hours)
        if way == "replaced" and step > trainee.training.max_staleness:
            hours = [([forgotten(one) for one in members], right) for members, right in hours]
        groups = [judged(members, right, how, judge) for members, right in hours]
        metrics = await make_step_on(policy, trainee, groups, step, settings)
        result.tokens += metrics.get("trainable_tokens", 0.0)
        if step and "share_ratio_one" in metrics:
            result.ratio_one.append(metrics["share_ratio_one"])
            result.foreign.append(metrics["share_foreign"])
            result.certain.append(certain * (1 - metrics["share_foreign"]))
    result.drift, result.right, result.area = options.reader.read(policy)
    result.cpu_seconds = time.process_time() - started
    return result


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What a result depends on besides way, verdicts and seed."""
    names = ("model", "steps", "groups", "learning_rate", "max_importance", "questions")
    return {"agents": AGENTS, **{name: getattr(options, name) for name in names}}


def kept(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a run that was made before; SystemExit if it was made with other settings."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    if found["settings"] != settings:
        raise SystemExit(f"error: {path} was made with other settings ({found['settings']}): use another --keep.")
    return found


def keep(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".writing")
    written.write_text(json.dumps(result, indent=1))
    written.rename(path)


def run_all(options: argparse.Namespace) -> None:
    """Make the runs that are missing, seed by seed."""
    directory = None
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for how, way in ((how, way) for how in options.verdicts for way in options.ways):
            path = options.keep / f"{way}-{how}-{seed}.json"
            if kept(path, settings_of(options)) is not None:
                continue
            directory = directory or model_directory(options.model, options.home)
            policy = CpuPolicy(directory, rank=16, learning_rate=options.learning_rate, seed=seed)
            result = asyncio.run(train(policy, way, how, seed, options))
            keep(path, asdict(result))
            print(
                f"{way}, {how} verdicts, seed {seed}: KL {result.drift:.4f}, right {result.right:.3f}, "
                f"AUC {result.area:.2f}, {result.cpu_seconds:.0f} s of CPU",
                file=sys.stderr,
                flush=True,
            )


def show(options: argparse.Namespace) -> None:
    """All runs that are kept, whatever was asked for now."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(options.keep.glob("*.json")):
        way, how, _ = path.stem.rsplit("-", 2)
        one = kept(path, settings_of(options))
        assert one is not None
        found.setdefault((how, way), []).append(one)
    columns = ("runs", "KL from the log", "right", "AUC", "ratio 1", "foreign", "certain", "tokens")
    print(f"{'verdicts':>9} {'way':>10} " + " ".join(f"{name:>15}" for name in columns))
    for how, way in ((how, way) for how in ("random", "true") for way in WAYS):
        runs = found.get((how, way), [])
        if not runs:
            continue
        shares = [fmean([one for run in runs for one in run[name]] or [math.nan])
                  for name in ("ratio_one", "foreign", "certain")]  # fmt: skip
        cells = [str(len(runs)), *(figure([run[name] for run in runs]) for name in ("drift", "right", "area"))]
        cells += [*(f"{share:.3f}" for share in shares), f"{fmean(run['tokens'] for run in runs):.0f}"]
        print(f"{how:>9} {way:>10} " + " ".join(f"{cell:>15}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="where each run's result is kept (by default nowhere)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--groups", type=int, default=4, help="in each step")
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--max-importance", type=float, default=1.3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--verdicts", nargs="+", choices=("random", "true"), default=("random", "true"))
    parser.add_argument("--questions", type=int, default=24, help="hours that a policy is asked about")
    parser.add_argument("--model", default=EMBEDDED, help="a directory, or the embedded one")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--show", action="store_true", help="print what is kept and run nothing")
    parser.add_argument("--quick", action="store_true", help="one seed, two steps, two ways")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps, options.groups, options.questions = 1, 2, 2, 8
        options.ways = ("decoupled", "fresh")
    import tempfile

    with tempfile.TemporaryDirectory() as nowhere:
        options.keep = options.keep or Path(nowhere)
        if not options.show:
            import_art()
            torch.set_num_threads(1)
            gc.freeze()  # what ART imports is not looked through again and again
            options.reader = Reader(questions(options.questions, "trained", "trained"))
            run_all(options)
        show(options)


if __name__ == "__main__":
    main()
