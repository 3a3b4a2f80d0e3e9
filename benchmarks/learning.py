"""What the embedded model learns in the closed loop, over several seeds: does it read, and does it hold?

    python benchmarks/learning.py [--seeds 5] [--keep DIR] [--quick] [-- FLAGS OF train_mmo.py]
    python benchmarks/learning.py --read HOME HOME ...     figures of earlier runs

Each seed is one `train_mmo.py` with everything at its default (and a world of its own) on a fresh home. Printed for
each: what its reading test found on words and tickers that nobody trained on, beside the base model both ways; then
whether each promise holds, in every seed and not on average. A collapsed seed is one that gives (nearly) one answer: it
is counted, and never left out. Exits with 1 if a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]

UNSEEN, TICKERS = "unseen words", "unseen tickers"
COLLAPSED = 0.95
"""A model that gives one answer more often than this has collapsed."""
DIRECTION, ABOVE_BASE, NARROWER = 0.75, 0.10, 0.05


def train(seed: int, home: Path, flags: list[str]) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_mmo.py"), "--home", str(home)]
    command += ["--seed", str(seed), "--world-seed", str(100 + seed), *flags]
    print(f"seed {seed}: training in {home} ...", flush=True)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    if done.returncode not in (0, 5):
        raise SystemExit(f"seed {seed}: train_mmo.py ended with {done.returncode}")


@dataclass(frozen=True, slots=True)
class Seed:
    """One run: its evaluation, its steps, and how long it took."""

    name: str
    evaluation: dict[str, Any]
    steps: list[dict[str, Any]]
    minutes: float

    @classmethod
    def read(cls, home: Path) -> Seed:
        folder = max((home / "runs").iterdir(), key=lambda one: one.name)
        evaluation = json.loads((folder / "evaluation.json").read_text())
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((folder / "summary.json").read_text())
        return cls(home.name, evaluation, steps, float(summary["seconds"]) / 60)

    def interval(self, reader: str, column: str, figure: str) -> dict[str, float]:
        for one in self.evaluation["reading"]["figures"]:
            if (one["reader"], one["column"]) == (reader, column):
                found: dict[str, float] = one[figure]
                return found
        raise SystemExit(f"{self.name} has no reading test: was it run with --eval-questions 0?")

    def direction(self, reader: str) -> dict[str, float]:
        return self.interval(reader, UNSEEN, "right_of_valid")

    def valid(self, reader: str, column: str) -> float:
        return self.interval(reader, column, "valid")["mean"]

    @property
    def answer_share(self) -> float | None:
        """The share of the commonest answer in what the model itself last said while it played."""
        return next((one["answer_share"] for one in reversed(self.steps) if "answer_share" in one), None)

    @property
    def has_collapsed(self) -> bool:
        return self.answer_share is not None and self.answer_share > COLLAPSED

    def promises(self) -> dict[str, bool]:
        found, base = self.direction("candidate"), self.direction("base")
        narrower = [
            self.valid(f"candidate{way}", TICKERS) >= self.valid(f"base{way}", TICKERS) - NARROWER
            for way in ("", ", greedy")
        ]
        return {
            "not collapsed": not self.has_collapsed,
            f"direction at T=1 at least {DIRECTION}": found["mean"] >= DIRECTION,
            f"its low end above the base's at T=1 by {ABOVE_BASE}": found["low"] >= base["mean"] + ABOVE_BASE,
            f"validity on unseen tickers not {NARROWER} below the base's, sampled and greedy": all(narrower),
        }


def show(seeds: list[Seed]) -> bool:
    """Print all of it; whether every promise holds in every seed."""
    print(
        "\nunseen words: right of the valid replies | unseen tickers: valid | gain over the stronger base, both at once"
    )
    heads = (
        "sampled",
        "greedy",
        "base, sampled",
        "base, greedy",
        "sampled (base)",
        "greedy (base)",
        "gain",
        "commonest",
    )
    print(f"{'':8}" + "".join(f"{head:>20}" for head in heads))
    for seed in seeds:
        gain = seed.evaluation["reading"]["gain"]
        share = seed.answer_share
        cells = [
            _interval(seed.direction("candidate")),
            f"{seed.direction('candidate, greedy')['mean']:.2f}",
            _interval(seed.direction("base")),
            f"{seed.direction('base, greedy')['mean']:.2f}",
            f"{seed.valid('candidate', TICKERS):.2f} ({seed.valid('base', TICKERS):.2f})",
            f"{seed.valid('candidate, greedy', TICKERS):.2f} ({seed.valid('base, greedy', TICKERS):.2f})",
            _interval(gain, sign="+"),
            "n/a" if share is None else f"{share:.2f}",
        ]
        print(f"{seed.name:8}" + "".join(f"{cell:>20}" for cell in cells) + f"   {seed.minutes:.1f} min")
    print(
        f"\nmean over {len(seeds)}: direction {fmean(one.direction('candidate')['mean'] for one in seeds):.3f}, "
        f"base {fmean(one.direction('base')['mean'] for one in seeds):.3f}, greedy base "
        f"{fmean(one.direction('base, greedy')['mean'] for one in seeds):.3f}, gain over the stronger base "
        f"{fmean(one.evaluation['reading']['gain']['mean'] for one in seeds):+.3f}; "
        f"collapsed: {sum(one.has_collapsed for one in seeds)}\n"
    )
    held = {name: sum(one.promises()[name] for one in seeds) for name in seeds[0].promises()}
    for name, number in held.items():
        print(f"{'holds ' if number == len(seeds) else 'BROKEN'} {number}/{len(seeds)}  {name}")
    return all(number == len(seeds) for number in held.values())


def _interval(interval: dict[str, float], sign: str = "") -> str:
    return f"{interval['mean']:{sign}.2f} [{interval['low']:{sign}.2f}, {interval['high']:{sign}.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one seed, one day of 4 hours: only that it runs")
    parser.add_argument("--keep", type=Path, help="folder for the homes; unset: a temporary one")
    parser.add_argument("--read", type=Path, nargs="+", metavar="HOME", help="only show these runs")
    options, flags = parser.parse_known_args()
    if options.read:
        raise SystemExit(0 if show([Seed.read(home) for home in options.read]) else 1)
    if options.quick:
        flags += ["--iterations", "1", "--windows-per-iteration", "4", "--eval-windows", "15", "--eval-questions", "8"]
    with tempfile.TemporaryDirectory() as temporary:
        numbers = range(1 if options.quick else options.seeds)
        homes = [(options.keep or Path(temporary)) / f"seed-{seed}" for seed in numbers]
        for seed, home in enumerate(homes):
            train(seed, home, [flag for flag in flags if flag != "--"])
        holds = show([Seed.read(home) for home in homes])
    raise SystemExit(0 if holds or options.quick else 1)


if __name__ == "__main__":
    main()
