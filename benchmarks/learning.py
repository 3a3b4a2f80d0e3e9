"""What the embedded model learns in the closed loop: reward, valid actions and P&L by day, over several seeds.

    python benchmarks/learning.py [--seeds 3] [--days 7] [--quick]
    python benchmarks/learning.py --read HOME HOME ...     figures of earlier runs

Each seed is one `train_mmo.py` with everything at its default on a fresh home. Printed: the mean over seeds with its
standard error, and what each run's own paired evaluation on held-out windows found.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parents[1]


def train(seed: int, days: int, windows: int, home: Path, flags: list[str]) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "train_mmo.py"), "--home", str(home)]
    command += ["--seed", str(seed), "--world-seed", str(100 + seed)]
    command += ["--iterations", str(days), "--windows-per-iteration", str(windows), *flags]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    if done.returncode not in (0, 5):
        raise SystemExit(f"seed {seed}: train_mmo.py ended with {done.returncode}")


def summary_of(home: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((_newest(home) / "summary.json").read_text())
    return summary


def _newest(home: Path) -> Path:
    return max((home / "runs").iterdir(), key=lambda folder: folder.name)


def show(homes: list[Path]) -> None:
    summaries = [summary_of(home) for home in homes]
    print(f"{len(homes)} seeds; mean ± standard error over seeds")
    print(f"{'day':>4} {'reward':>16} {'valid actions':>18} {'P&L per window':>20}")
    for number in range(min(len(summary["days"]) for summary in summaries)):
        day = [summary["days"][number] for summary in summaries]
        figures = [_mean_and_error([float(one[name]) for one in day if one.get(name) is not None]) for name in _SHOWN]
        print(f"{number + 1:>4} {figures[0]:>16} {figures[1]:>18} {figures[2]:>20}")
    print("\nheld-out windows, paired: base model → candidate, 95% intervals over windows")
    for home in homes:
        _show_evaluation(home)


def _show_evaluation(home: Path) -> None:
    found = json.loads((_newest(home) / "evaluation.json").read_text())
    by_role = {figures["role"]: figures for figures in found["figures"]}
    before, after = by_role.get("base", by_role["incumbent"]), by_role["candidate"]
    print(f"{home.name}: {after['name']}, {len(found['windows'])} windows")
    for name, title in (("error_rate", "errors"), ("score", "score"), ("pnl", "P&L per decision")):
        print(f"  {title:<16} {_interval(before[name])} → {_interval(after[name])}")


def _interval(interval: dict[str, float]) -> str:
    return f"{interval['mean']:.2f} [{interval['low']:.2f}, {interval['high']:.2f}]"


_SHOWN = ("reward", "valid_share", "mean_pnl")


def _mean_and_error(values: list[float]) -> str:
    if not values:
        return "n/a"
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{fmean(values):.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--windows", type=int, default=18, help="hours per day")
    parser.add_argument("--quick", action="store_true", help="2 seeds, 2 days of 8 hours")
    parser.add_argument("--keep", type=Path, help="folder for the homes; unset: a temporary one")
    parser.add_argument("--read", type=Path, nargs="+", metavar="HOME", help="only show these runs")
    options, flags = parser.parse_known_args()
    if options.read:
        show(options.read)
        return
    seeds, days, windows = (2, 2, 8) if options.quick else (options.seeds, options.days, options.windows)
    with tempfile.TemporaryDirectory() as temporary:
        homes = [(options.keep or Path(temporary)) / f"seed-{seed}" for seed in range(seeds)]
        for seed, home in enumerate(homes):
            train(seed, days, windows, home, flags)
        show(homes)


if __name__ == "__main__":
    main()
