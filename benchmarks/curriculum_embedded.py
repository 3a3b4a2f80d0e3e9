"""The part of ``curriculum.py`` that trains the embedded model in the closed loop: tokens until it plays ``several``.

Each seed is two `train_mmo.py` with ``--stage several``, one with ``--curriculum uniform`` and one with ``auto``, each
on a fresh home and in the same world. After every day its checkpoint is asked questions of stage ``several`` with words
that nobody trained on, at temperature 1.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer.evaluate.reading import Replies, ask
from trainer.inference.base_model import EMBEDDED, model_directory
from trainer.inference.chat_models import Engine
from trainer.world.questions import Question, questions

ROOT = Path(__file__).resolve().parents[1]
How = Literal["uniform", "auto"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a checkpoint replied: the valid of all, and of those about the news' ticker the right ones."""

    tokens: int
    valid: float
    direction: float


@dataclass(frozen=True, slots=True)
class Trial:
    """Of one run: the base model, each day's checkpoint, and the least share of the draws that an arm had."""

    base: Asked
    days: tuple[Asked, ...]
    least: float

    def tokens(self, valid: float, above: float) -> int | None:
        """Tokens trained until both are reached; None if they are not."""
        for day in self.days:
            if day.valid >= valid and day.direction >= self.base.direction + above:
                return day.tokens
        return None


def trained(seed: int, how: How, home: Path, flags: Sequence[str]) -> Path:
    """Train; returns the run's folder."""
    command = [sys.executable, str(ROOT / "scripts" / "train_mmo.py"), "--home", str(home), "--stage", "several"]
    command += ["--curriculum", how, "--seed", str(seed), "--world-seed", str(100 + seed), "--held-out-share", "0"]
    command += ["--no-promote", "--keep-checkpoints", "0", "--eval-questions", "0", "--json", *flags]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    if done.returncode not in (0, 5):
        raise SystemExit(f"seed {seed}, {how}: train_mmo.py ended with {done.returncode}")
    return max((home / "runs").iterdir(), key=lambda one: one.name)


def marked(tokens: int, asked: Sequence[Question], replies: Replies) -> Asked:
    taken = [(one.taken(reply), one.direction) for one, own in zip(asked, replies, strict=True) for reply in own]
    valid = [(direction, right) for direction, right in taken if direction is not None]
    about = [direction == right for direction, right in valid if direction != 0]
    return Asked(tokens, len(valid) / len(taken), sum(about) / len(about) if about else 0.0)


def step_folders(home: Path) -> dict[int, Path]:
    return {int(one.name.removeprefix("step-")): one for one in home.glob("checkpoints/*/step-*")}


async def examine(folder: Path, home: Path, number: int, samples: int, threads: int) -> Trial:
    summary = json.loads((folder / "summary.json").read_text())
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    asked = questions(number, "unseen", "trained", stage="several")
    checkpoints = step_folders(home)
    engine = Engine(model_directory(EMBEDDED, home), threads=threads)
    try:
        base = marked(0, asked, await ask(engine.model(None, "base"), asked, 1.0, samples))
        days = []
        for day in summary["days"]:
            checkpoint = checkpoints[day["step"]] if day["step"] else None
            tokens = sum(int(one["trainable_tokens"]) for one in steps if one["step"] <= day["step"])
            model = engine.model(checkpoint, f"step {day['step']}")
            days.append(marked(tokens, asked, await ask(model, asked, 1.0, samples)))
    finally:
        await engine.close()
    arms = summary["curriculum"]
    return Trial(base, tuple(days), min(arms.values()) / sum(arms.values()))


def compare(
    seeds: Sequence[int], valid: float, above: float, flags: Sequence[str], keep: Path | None, quick: bool
) -> None:
    """Train and ask all; prints what each day's checkpoint does, and the share of tokens where both reach the stage."""
    number, samples = (8, 1) if quick else (80, 2)
    with tempfile.TemporaryDirectory() as temporary:
        for seed in seeds:
            found: dict[How, int | None] = {}
            for how in ("uniform", "auto"):
                home = (keep or Path(temporary)) / f"seed-{seed}-{how}"
                trial = asyncio.run(examine(trained(seed, how, home, flags), home, number, samples, threads=0))
                found[how] = trial.tokens(valid, above)
                said = "  ".join(
                    f"{one.tokens}: {one.valid:.2f}, {one.direction:.2f}" for one in (trial.base, *trial.days)
                )
                print(f"seed {seed} {how:8s} tokens: valid, direction  {said}  least arm {trial.least:.3f}", flush=True)
            uniform, auto = found["uniform"], found["auto"]
            share = "n/a" if uniform is None or auto is None else f"{auto / uniform:.2f}"
            print(
                f"seed {seed} reached at: uniform {uniform or 'not'}, auto {auto or 'not'}; share {share}", flush=True
            )
