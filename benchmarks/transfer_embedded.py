"""Transfer on the embedded model: ``python benchmarks/transfer.py --model embedded``.

For each seed, a source is trained in stage ``one``; then stage ``several`` from the base model and from the source's
newest checkpoint (``--init-from``), on the same hours. A day counts as learnt if the replies of the checkpoint that
played it were valid in 95 % and made more than the base model's on its first day. Half of the agents explore in all
arms, so that the figures compare the arms and are no measure of the model alone. Printed: the steps that were trained
before the first such day, or that there was none.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
VALID = 0.95
UNTIL = "2026-10-10T00:00"


def train(home: Path, seed: int, days: int, flags: Sequence[str]) -> dict[str, Any]:
    """One closed loop; returns the summary of its run."""
    command = [sys.executable, str(ROOT / "scripts" / "train_mmo.py"), "--home", str(home), "--no-promote"]
    command += ["--seed", str(seed), "--world-seed", str(100 + seed), "--until", UNTIL, "--iterations", str(days)]
    command += ["--simulate", "on", "--judge", "outcome", "--backend", "cpu", "--held-out-share", "0", *flags]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    if done.returncode not in (0, 5):
        raise SystemExit(f"train_mmo.py ended with {done.returncode} in {home}")
    newest = max((home / "runs").iterdir(), key=lambda one: one.stat().st_mtime)
    found: dict[str, Any] = json.loads((newest / "summary.json").read_text())
    return found


def steps_to_learn(days: Sequence[dict[str, Any]], base_made: float) -> int | None:
    """The steps that were trained before the first day that counts as learnt; None if no day does."""
    trained = 0
    for day in days:
        if day["valid_share"] >= VALID and day["mean_pnl"] > base_made:
            return trained
        trained += int(day["steps"])
    return None


def compare(seeds: int, days: int, source_days: int, flags: Sequence[str]) -> None:
    print(f"{'seed':>4} {'from the base':>14} {'from stage one':>15}   valid and made per window, day by day")
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            source, scratch, transferred = (Path(folder) / name for name in ("source", "scratch", "transferred"))
            trained = train(source, seed, source_days, ("--stage", "one", "--model", "source", *flags))
            shutil.copytree(source / "checkpoints", transferred / "checkpoints")
            several = ("--stage", "several", *flags)
            base = train(scratch, seed, days, several)["days"]
            begun = ("--init-from", f"source@step{trained['step']}")
            other = train(transferred, seed, days, (*several, *begun))["days"]
        made = float(base[0]["mean_pnl"])
        told = " | ".join(
            ", ".join(f"{day['valid_share']:.2f} {day['mean_pnl']:+.2f}" for day in own) for own in (base, other)
        )
        cells = [found if (found := steps_to_learn(own, made)) is not None else "not learnt" for own in (base, other)]
        print(f"{seed:4} {cells[0]!s:>14} {cells[1]!s:>15}   {told}", flush=True)
