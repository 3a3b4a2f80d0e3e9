"""What becomes of canaries of known worth: how often they are settled within 28 days, and how often wrongly.

    python benchmarks/canary.py [--quick]

Hourly windows, a tenth of them not judged; four weeks of past; a window's noise of 0.25, good and bad hours of 0.1 for
everybody. The rulings are those of ``trainer.promote.canary.decide``. Exits with 1 if a bar is missed: an equal model
rolled back, or one that is worse by the margin finished, in more than 5 %; settled within 28 days in less than 80 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.builders_canary import played, settled
from trainer.promote.canary import MARGIN, CanaryRuling

WRONG, ENOUGH = 0.05, 0.8

BARS: dict[str, Mapping[str, float]] = {
    f"2 of 20 agents, effects of sd {sd:g}{said}": {"effects": sd, "worth": worth}
    for sd in (0.0, 0.05, 0.1)
    for worth, said in ((0.0, ", equal"), (-MARGIN, f", worse by {MARGIN:g}"))
}
BESIDES: dict[str, Mapping[str, float]] = {
    "better by 0.05": {"worth": MARGIN},
    "worse by 0.02": {"worth": -0.02},
    "worse by 0.2": {"worth": -0.2},
    "a liar outside at +0.5, equal": {"outside": 0.5},
    "a liar outside at +0.5, better by 0.05": {"outside": 0.5, "worth": MARGIN},
    "a liar outside at -0.5, worse by 0.05": {"outside": -0.5, "worth": -MARGIN},
    "a liar inside at +0.5, worse by 0.05": {"inside": 0.5, "worth": -MARGIN},
    "a liar inside at -0.5, equal": {"inside": -0.5},
    "agents drift by 0.02, equal": {"drift": 0.02},
    "agents drift by 0.02, worse by 0.05": {"drift": 0.02, "worth": -MARGIN},
    "scores cut to 0 and 1, equal": {"bounded": True},
    "scores cut to 0 and 1, worse by 0.05": {"bounded": True, "worth": -MARGIN},
    "one week of past, equal": {"past": 151},
    "1 of 10 agents, equal": {"canary": 1, "others": 9},
    "1 of 10 agents, worse by 0.05": {"canary": 1, "others": 9, "worth": -MARGIN},
    "2 of 8 agents, equal": {"canary": 2, "others": 6},
    "10 of 100 agents, equal": {"canary": 10, "others": 90},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 trials instead of 4,000")
    trials = 500 if parser.parse_args().quick else 4000
    header = f"{trials} trials a line"
    print(f"{header:48s} {'finished':>9s} {'rolled back':>12s} {'settled':>8s} {'median windows':>15s}")
    missed = [name for name, facts in BARS.items() if not _holds(name, facts, trials)]
    print("besides")
    for name, facts in BESIDES.items():
        _measure(name, facts, trials // 4)
    print(f"missed: {'; '.join(missed)}" if missed else "All bars are met.")
    return 1 if missed else 0


def _holds(name: str, facts: Mapping[str, float], trials: int) -> bool:
    finished, rolled_back = _measure(name, facts, trials)
    wrong = finished if facts["worth"] else rolled_back
    return wrong <= WRONG and finished + rolled_back >= ENOUGH


def _measure(name: str, facts: Mapping[str, float], trials: int) -> tuple[float, float]:
    """The shares that were finished and rolled back."""
    rng = np.random.default_rng(list(name.encode()))
    results = [settled(played(rng, **facts)) for _ in range(trials)]  # type: ignore[arg-type]  # counts are whole
    shares = [sum(ruling is wanted for ruling, _ in results) / trials for wanted in _SETTLED]
    took = [windows for ruling, windows in results if ruling in _SETTLED]
    median = f"{np.median(took):15.0f}" if took else f"{'-':>15s}"
    print(f"{name:48s} {shares[0]:9.1%} {shares[1]:12.1%} {sum(shares):8.1%} {median}", flush=True)
    return shares[0], shares[1]


_SETTLED = (CanaryRuling.FINISH, CanaryRuling.ROLL_BACK)

if __name__ == "__main__":
    sys.exit(main())
