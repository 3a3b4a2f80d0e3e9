"""Do lessons help? Lessons against none and against random ones, at hours of the simulated market with unseen words.

    python benchmarks/lessons_lift.py [--quick] [--seeds 0 1 2] [--windows 60] [--lessons 2-all-notes] [--out FILE]

For each seed, scripted agents of all skills play two weeks with the trained words; the offline judge scores them, and
what it found is distilled by template, as after every training batch. Then the embedded model is asked at later hours
whose headlines have unseen words: without lessons, with those that retrieval finds as of the hour, with as many by
chance, and with the found ones turned round (BUY for SELL): wrong on purpose. A decision's score is
0.5 + 0.5 (P(right verb) - P(wrong verb)), computed from the model's own probabilities, so that no sampling blurs it.

Printed: the differences with 95 % intervals over windows, by seed and together; what the gate rules on each; and how
often it promotes random lessons in 200 comparisons resampled from the measured differences, as measured and with their
mean taken out. Every window is a line of FILE as soon as it is measured, and is not measured again: kill it and start
the same command. One thread. Exits 1 if random lessons are promoted in more than 5 %, or wrong ones at all; whether
lessons help is reported as it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.lesson_client import context_of
from data_bridge.lesson_prompts import LessonsPolicy, with_lessons
from data_bridge.models import ChatMessage
from data_bridge.quality import Rules, check
from data_bridge.reader import WindowReader
from data_bridge.scoring import ScoreRequest
from data_bridge.window_ids import GRACE, end_of, window_of, windows_from
from trainer.config.sections import GroupingSettings
from trainer.config.training import GateSettings
from trainer.evidence import Look, Ruling
from trainer.inference.embedding import EmbeddedModel
from trainer.judge.outcome import OutcomeJudge
from trainer.ledger.lesson_search import any_lessons
from trainer.ledger.lessons import vector_type
from trainer.lesson import LessonKind, Scope
from trainer.lessons.retrieval import Lessons, open_lessons_of
from trainer.lessons.stage import LessonStage
from trainer.plan.grouping import form_groups
from trainer.promote.gate import Evidence, decide
from trainer.statistics.gain import gain_interval, spend
from trainer.types import JudgedGroup
from trainer.world.actions import BUY, SELL, Decision
from trainer.world.agents import scripted_cast
from trainer.world.exchange import Exchange
from trainer.world.market import Market, moment
from trainer.world.observation import messages_for, observe
from trainer.world.play import play_windows

START = "2026-03-02T00:00"
GAME = "market"
KINDS = ("lessons", "random", "wrong")
COMPARISONS = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """A decision with unseen words, and which verb fits its news."""

    window_id: str
    at: Any
    messages: tuple[ChatMessage, ...]
    right: str
    wrong: str


def decisions(market: Market, first: str, number: int) -> list[Asked]:
    """The first ``number`` hours from ``first`` whose news points somewhere."""
    found: list[Asked] = []
    for window_id in windows_from(first, 3 * number):
        hour = market.hour(window_id, "unseen")
        news, seen = hour.news[0], observe(hour, 0, Exchange(hour).quotes(0))
        if news.direction == 0 or len(found) == number:
            continue
        verbs = (BUY, SELL) if news.direction > 0 else (SELL, BUY)
        right, wrong = (str(Decision(verb, hour.tickers[0].symbol, 20)) for verb in verbs)
        messages = tuple(messages_for(seen, market.stage))
        found.append(Asked(window_id, moment(window_id, hour.minutes[0]), messages, right, wrong))
    if len(found) < number:
        raise SystemExit(f"Only {len(found)} of {3 * number} hours have news that points somewhere: ask for fewer.")
    return found


async def learn(database: Database, folder: Path, seed: int, hours: int) -> str:
    """Play, judge and distil; returns the first hour after it."""
    market, windows = Market(seed), windows_from(START, hours)
    await play_windows(database, folder / "spool", market, scripted_cast(8, seed), windows, write_together=48)
    now = end_of(windows[-1], 1) + GRACE
    rules = Rules(now=now, lookback=timedelta(hours=hours + 1))
    reader, judge = WindowReader(database, rules), OutcomeJudge()
    stage = LessonStage(database, await vector_type(database.pool), GAME, "game", None)
    async for window in reader.stream(await reader.discover()):
        for group in form_groups(check(window, rules), GroupingSettings(), seed).groups:
            judged = await judge.judge(group)
            if isinstance(judged, JudgedGroup):
                await stage.distil(judged)
    print(f"seed {seed}: {stage.kept} lessons from {stage.groups} judged groups", file=sys.stderr, flush=True)
    return window_of(now + timedelta(hours=1))


def turned(text: str) -> str:
    """The opposite advice."""
    return text.replace(BUY, "\0").replace(SELL, BUY).replace("\0", SELL)


async def texts_for(lessons: Lessons, one: Asked, policy: LessonsPolicy, seed: int) -> dict[str, list[str]]:
    kinds = tuple(LessonKind(kind) for kind in policy.kinds)
    scope, context = Scope(GAME), context_of(one.messages)
    found = await lessons.retrieve(context, scope, as_of=one.at, k=policy.number, kinds=kinds)
    pool = lessons.database.pool
    drawn = await any_lessons(pool, scope, one.at, kinds, number=policy.number, seed=f"{seed}/{one.window_id}")
    shown = [each.lesson.shown for each in found]
    return {
        "none": [],
        "lessons": shown,
        "random": [each.shown for each in drawn],
        "wrong": [turned(text) for text in shown],
    }


Score = Callable[[Sequence[ChatMessage], Asked], float]


def scorer(home: Path) -> Score:
    import torch

    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.inference.policy import CpuPolicy

    torch.set_num_threads(1)
    policy = CpuPolicy(model_directory(EMBEDDED, home), rank=1, learning_rate=0.0, seed=0)

    def score(messages: Sequence[ChatMessage], one: Asked) -> float:
        both = policy.score([ScoreRequest(tuple(messages), reply) for reply in (one.right, one.wrong)])
        right, wrong = (0.0 if each is None else float(np.exp(sum(each.logprobs))) for each in both)
        return 0.5 + 0.5 * (right - wrong)

    return score


async def measure_seed(seed: int, options: argparse.Namespace, score: Score, kept: Kept) -> None:
    """Measure the windows of ``seed`` that are not in ``kept``, each into it as it is done."""
    with tempfile.TemporaryDirectory(prefix="hindsight-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer(folder / "postgres")
        server.start()
        try:
            async with open_database(server.url(), folder, migrate=True) as database:
                first = await learn(database, folder, seed, options.hours)
                lessons = await open_lessons_of(database, EmbeddedModel(patience=3600.0))
                try:
                    asked = decisions(Market(seed), first, options.windows)
                    for number, one in enumerate(asked, start=1):
                        if one.window_id in kept.of(seed):
                            continue
                        texts = await texts_for(lessons, one, options.lessons, seed)
                        worded = options.lessons.wording
                        found = {
                            kind: score(with_lessons(one.messages, shown, worded), one) for kind, shown in texts.items()
                        }
                        kept.add(seed, one.window_id, found)
                        if number % 10 == 0:
                            print(f"seed {seed}: {number} of {len(asked)}", file=sys.stderr, flush=True)
                finally:
                    await lessons.embedder.close()
        finally:
            server.stop()


class Kept:
    """What was measured with one policy after as many hours of learning: a file with a line for each window."""

    def __init__(self, path: Path, policy: str, hours: int) -> None:
        self._path, self._key = path, {"policy": policy, "hours": hours}
        self._rows: dict[int, dict[str, dict[str, float]]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # we were killed while we wrote it
                continue
            if {name: row.get(name) for name in self._key} == self._key:
                self.of(row["seed"])[row["window"]] = row["scores"]

    def of(self, seed: int) -> dict[str, dict[str, float]]:
        """The scores by kind of each window."""
        return self._rows.setdefault(seed, {})

    def add(self, seed: int, window_id: str, scores: dict[str, float]) -> None:
        self.of(seed)[window_id] = scores
        row = {**self._key, "seed": seed, "window": window_id, "scores": scores}
        with self._path.open("a") as file:
            file.write(f"\n{json.dumps(row)}\n")  # the first break ends a line that was not finished

    def seed(self, seed: int, windows: int) -> dict[str, Any]:
        """The first ``windows`` of a seed, as one list of scores for each kind."""
        rows = [scores for _, scores in sorted(self.of(seed).items())[:windows]]
        return {"seed": seed, "scores": {kind: [one[kind] for one in rows] for kind in ("none", *KINDS)}}


def differences(seeds: Sequence[dict[str, Any]], kind: str, against: str = "none") -> list[float]:
    return [a - b for one in seeds for a, b in zip(one["scores"][kind], one["scores"][against], strict=True)]


def ruling(measured: Sequence[float]) -> Ruling:
    """What the gate says to these differences at its first look."""
    evidence = Evidence(tuple(measured), error_rate=0.0, blocked_rate=0.0, length_ratio=1.0, kl_from_base=None)
    return decide(evidence, GateSettings(), Look(1, spend(0.0))).ruling


def promoted_share(measured: Sequence[float], windows: int, seed: int = 0, *, centred: bool) -> float:
    """How often the gate promotes, in comparisons resampled from ``measured``."""
    chance, values = np.random.default_rng(seed), np.asarray(measured)
    values = values - values.mean() if centred else values
    drawn = (chance.choice(values, size=windows) for _ in range(COMPARISONS))
    return float(np.mean([ruling([float(one) for one in each]) is Ruling.PROMOTE for each in drawn]))


def summary(seeds: Sequence[dict[str, Any]], windows: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, against in (("lessons", "none"), ("lessons", "random"), ("random", "none"), ("wrong", "none")):
        own = differences(seeds, kind, against)
        found[f"{kind} - {against}"] = {
            "together": gain_interval(own).told("+"),
            "by seed": [gain_interval(differences([one], kind, against)).told("+") for one in seeds],
            "gate": [ruling(differences([one], kind, against)).value for one in seeds],
        }
    chance = differences(seeds, "random")
    found["random promoted"] = promoted_share(chance, windows, centred=False)
    found["random promoted, mean taken out"] = promoted_share(chance, windows, centred=True)
    return found


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, 24 windows, two days of lessons")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--windows", type=int, default=60, help="evaluation windows of each seed")
    parser.add_argument("--hours", type=int, default=336, help="that lessons are learnt from")
    parser.add_argument("--lessons", type=LessonsPolicy.parse, default=LessonsPolicy(2), metavar="POLICY")
    parser.add_argument("--out", type=Path, default=Path("lessons_lift.jsonl"), help="a line for each window")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.windows, options.hours = options.seeds[:1], 24, 48
    kept = Kept(options.out, options.lessons.name, options.hours)
    missing = [seed for seed in options.seeds if len(kept.of(seed)) < options.windows]
    score = scorer(options.home) if missing else None
    for seed in missing:
        assert score is not None
        await measure_seed(seed, options, score, kept)
    seeds = [kept.seed(seed, options.windows) for seed in options.seeds]
    found = summary(seeds, options.windows)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{len(seeds)} seeds, {options.windows} windows each, {options.lessons.name}; mean [95 % interval]")
        means = {kind: np.mean([one["scores"][kind] for one in seeds]) for kind in ("none", *KINDS)}
        print("score: " + ", ".join(f"{kind} {value:.3f}" for kind, value in means.items()))
        for name, value in found.items():
            told = value if isinstance(value, float) else "; ".join(f"{key}: {own}" for key, own in value.items())
            print(f"{name:34s} {told}")
    wrong = {ruling(differences([one], "wrong")) for one in seeds}
    return 1 if found["random promoted, mean taken out"] > 0.05 or Ruling.PROMOTE in wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
