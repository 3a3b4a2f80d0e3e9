"""Which judges pass the certificate: sound ones, and ones with a known fault, in forty examinations each.

    python benchmarks/certificate.py [--quick]

Every simulated judge reads the prompt that a real one would get and answers in JSON; only the network is left out. Each
examination has material of its own (seed) and costs as many calls as ``certify_judge.py`` announces. Exits with 1 if a
promise is broken: the ideal judge passes 38 of 40, a sound one with noise 0.1 passes 36, one with a fault at most 2.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.builders_certificate import examined_in_process
from tests.fakes.judge_server import Scorer
from tests.fakes.judges_with_faults import SOUND, UNFIT, with_noise
from trainer.ledger.certificates import binding

EXAMINATIONS = 40
MAX_UNFIT = 2
BESIDES = {f"sound with noise {noise:g}": noise for noise in (0.15, 0.2, 0.3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 examinations instead of 40")
    times = 8 if parser.parse_args().quick else EXAMINATIONS
    print(f"{times} examinations a line{'':9s} {'passed':>6s} {'must':>12s} {'calls':>6s}  what decided")
    broken = list[str]()
    for name, (judge, least) in SOUND.items():
        needed = least * times / EXAMINATIONS
        if _passed(name, judge, times, f"at least {needed:g}") < needed:
            broken.append(name)
    for name, scorer in UNFIT.items():
        allowed = MAX_UNFIT * times / EXAMINATIONS
        if _passed(name, lambda _, scorer=scorer: scorer, times, f"at most {allowed:g}") > allowed:  # type: ignore[misc]
            broken.append(name)
    print("besides, where nothing is promised")
    for name, noise in BESIDES.items():
        _passed(name, lambda seed, noise=noise: with_noise(noise, seed), times, "")  # type: ignore[misc]
    print(f"broken: {'; '.join(broken)}" if broken else "All promises are kept.")
    return 1 if broken else 0


def _passed(name: str, judge: Callable[[int], Scorer], times: int, must: str) -> int:
    """How many examinations the judge passes; prints which lines decided how often."""
    passed, calls, decisive = 0, set[int](), Counter[str]()
    for seed in range(times):
        lines, needed = examined_in_process(judge(seed), seed)
        passed += all(line.passed for line in lines)
        calls.add(needed)
        decisive.update(line.name for line in binding(lines))
    said = ", ".join(f"{line} {count}" for line, count in decisive.most_common())
    print(f"{name:30s} {passed:6d} {must:>12s} {'/'.join(map(str, sorted(calls))):>6s}  {said}", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
