"""Runs every benchmark, one at a time so that they do not disturb each other.

    python benchmarks/all.py [--quick]

Figures are ratios within one run: they show how close to the limit we are, not how fast the machine is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NOT_RUN_ALONE = {"all", "curriculum_embedded", "language_steps", "language_week", "transfer_embedded", "trl_step"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs")
    options = parser.parse_args()
    failed = []
    for path in sorted(HERE.glob("*.py")):
        if path.stem in NOT_RUN_ALONE:
            continue
        print(f"== {path.stem}", flush=True)
        started = time.monotonic()
        done = subprocess.run([sys.executable, str(path), *(["--quick"] if options.quick else [])])
        print(f"   ({time.monotonic() - started:.0f} s)\n", flush=True)
        if done.returncode != 0:
            failed.append(path.stem)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
