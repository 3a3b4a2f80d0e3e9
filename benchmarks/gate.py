"""How often the gate errs, by simulation: the long version of tests/unit/test_honest_gate.py.

    python benchmarks/gate.py [--quick] [--json]

Differences between two releases are drawn, one per window: independent, related from hour to hour (AR(1)), or with
rare large losses. Printed are the share of equal models that one look promotes, the share of years of weekly looks in
which a model that is worse by 0.02 is handed out, and the power for gains that matter. Exits 1 if a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trainer.config.training import GateSettings
from trainer.evidence import Look, Ruling
from trainer.promote.gate import Evidence, decide
from trainer.statistics.gain import HARM, YEARLY_BUDGET, lower_end, rules_out_harm, spend
from trainer.statistics.intervals import Floats

FAMILIES = ("independent", "AR(1) 0.3", "AR(1) 0.5", "rare losses")
NOMINAL, WEEKS = 0.025, 52


def drawn(family: str, windows: int, number: int, gain: float, chance: np.random.Generator) -> Floats:
    """``number`` histories of ``windows`` differences with the true mean ``gain``."""
    if family == "rare losses":
        return gain + np.where(chance.random((number, windows)) < 0.1, -0.45, 0.05)
    correlation = float(family.removeprefix("AR(1) ")) if family.startswith("AR") else 0.0
    noise = chance.normal(0, 0.25, (number, windows))
    for hour in range(1, windows):
        noise[:, hour] = correlation * noise[:, hour - 1] + np.sqrt(1 - correlation**2) * noise[:, hour]
    return gain + noise


def passes(differences: Floats, look: Look) -> bool:
    """What the gate decides, without its sentences."""
    return lower_end(differences, look.level) > 0 and rules_out_harm(differences, look.harm_chance)


def agrees_with_the_gate(chance: np.random.Generator) -> bool:
    """Whether ``passes`` is the gate: on a few histories, by its own words."""
    look = Look(1, spend(0.0))
    for differences in drawn("AR(1) 0.3", 40, 50, 0.12, chance):
        evidence = Evidence(tuple(differences), 0.0, 0.0, 1.0, None)
        if (decide(evidence, GateSettings(), look).ruling is Ruling.PROMOTE) != passes(differences, look):
            return False
    return True


def year_of_looks() -> list[Look]:
    looks: list[Look] = []
    for _ in range(WEEKS):
        looks.append(Look(1, spend(sum(look.harm_chance for look in looks))))
    return looks


def share(histories: Floats, look: Look) -> float:
    return float(np.mean([passes(one, look) for one in histories]))


def measure(trials: int, seed: int) -> dict[str, dict[str, float]]:
    chance = np.random.default_rng(seed)
    first, looks = Look(1, spend(0.0)), year_of_looks()
    last = Look(1, spend(sum(look.harm_chance for look in looks)))
    found: dict[str, dict[str, float]] = {}
    for family in FAMILIES:
        line = {}
        for windows in (15, 25, 40):
            equal = drawn(family, windows, trials, 0.0, chance)
            line[f"equal, {windows}"] = float(np.mean([lower_end(one, first.level) > 0 for one in equal]))
        for windows in (15, 40, 60, 120):
            years = max(400, trials // 5)
            handed_out = 0
            for _ in range(years):
                weeks = drawn(family, windows, WEEKS, -HARM, chance)
                handed_out += any(passes(week, look) for week, look in zip(weeks, looks, strict=True))
            line[f"harm in a year, {windows}"] = handed_out / years
        line["power +0.2, 40"] = share(drawn(family, 40, trials // 4, 0.2, chance), first)
        line["power +0.3, 60, budget spent"] = share(drawn(family, 60, trials // 4, 0.3, chance), last)
        line["power +0.05, 168"] = share(drawn(family, 168, trials // 4, 0.05, chance), first)
        found[family] = line
        print(f"{family}: " + ", ".join(f"{name} {value:.3f}" for name, value in line.items()), file=sys.stderr)
    return found


def broken(found: dict[str, dict[str, float]]) -> list[str]:
    """The bounds that do not hold."""
    faults = []
    for family, line in found.items():
        faults += [f"{family}: {name}" for name, value in line.items() if "equal" in name and value > 1.5 * NOMINAL]
        faults += [f"{family}: {name}" for name, value in line.items() if "harm" in name and value > YEARLY_BUDGET]
    for name in ("power +0.2, 40", "power +0.3, 60, budget spent"):
        faults += [f"independent: {name}"] if found["independent"][name] < 0.8 else []
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = measure(1_000 if options.quick else 10_000, options.seed)
    faults = broken(found)
    if not agrees_with_the_gate(np.random.default_rng(options.seed)):
        faults.append("the simulated gate is not the real one")
    if options.json:
        print(json.dumps({"families": found, "broken": faults}))
    else:
        names = list(next(iter(found.values())))
        print(f"{'':32}" + "".join(f"{family:>14}" for family in found))
        for name in names:
            print(f"{name:32}" + "".join(f"{line[name]:14.3f}" for line in found.values()))
        print("Bounds: " + ("all hold." if not faults else "broken: " + "; ".join(faults)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
