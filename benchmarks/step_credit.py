"""How many steps a softmax policy needs to learn to read, with credit for whole trajectories and for decisions.

    python benchmarks/step_credit.py [--seeds 20] [--luck 0.0 0.2] [--discount 0.5] [--quick]
    python benchmarks/step_credit.py --model embedded --keep DIR [--seeds 3] [--windows 2] [--most 24] [--quick]

An agent takes three decisions a window, each about news of its own; a trajectory's score is the mean over its decisions
(``--luck`` of them right or wrong by a coin). Eight agents a window, twelve windows a step; the returns and advantages
are the trainer's own, the step has ART's scale of a batch. Printed: the steps until the right answer has a probability
of 0.8 in unseen hours, the mean over seeds with its standard error, and the share of steps that credit for decisions
needs, seed by seed.

``--model`` does the same with a language model (``language_steps.py``), by default with a discount of 0.5. Each run (a
credit and a seed) is kept in ``--keep``: started again, the command makes the missing ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from trainer.train.selection import advantages
from trainer.train.step_credit import returns

WORDS, AGENTS, WINDOWS, DECISIONS, RATE, ENOUGH, MOST = 8, 8, 12, 3, 4.0, 0.8, 400


def steps_needed(seed: int, luck: float, discount: float | None) -> int:
    """Steps until the policy reads; ``discount`` None credits whole trajectories."""
    rng = np.random.default_rng(seed)
    truth, weights = rng.normal(size=WORDS), np.zeros(WORDS)
    unseen = rng.normal(size=(1000, WORDS)) / np.sqrt(WORDS)
    for step in range(MOST):
        first = 1 / (1 + np.exp(-unseen @ weights))
        if np.where(unseen @ truth > 0, first, 1 - first).mean() >= ENOUGH:
            return step
        parts = [_window(rng, truth, weights, luck, discount) for _ in range(WINDOWS)]
        scale = np.mean([np.abs(gains).mean() for gains, _ in parts])
        mean = np.mean([(gains[..., None] * slopes).mean(axis=(0, 1)) for gains, slopes in parts], axis=0) / scale
        weights = weights + RATE * mean / max(1.0, float(np.linalg.norm(mean)))
    return MOST


def _window(rng: Any, truth: Any, weights: Any, luck: float, discount: float | None) -> tuple[Any, Any]:
    """The advantage of each decision of each agent, and the slope of its log-probability."""
    words = rng.normal(size=(DECISIONS, WORDS)) / np.sqrt(WORDS)
    first = 1 / (1 + np.exp(-words @ weights))
    said = rng.random((AGENTS, DECISIONS)) < first
    up = np.where(rng.random(DECISIONS) < luck, rng.random(DECISIONS) < 0.5, words @ truth > 0)
    right = (said == up).astype(float)
    if discount is None:
        gains = np.repeat(np.array(advantages(list(right.mean(axis=1))))[:, None], DECISIONS, axis=1)
    else:
        ahead = np.array([returns(list(row), discount) for row in right])
        gains = np.stack([advantages(list(column)) for column in ahead.T], axis=1)
    slopes = np.where(said, 1 - first, -first)[..., None] * words
    return gains, slopes


def on_a_language_model(options: argparse.Namespace) -> int:
    import gc
    import tempfile

    import torch
    from language_steps import run

    from trainer.inference.base_model import EMBEDDED
    from trainer.train.backends.art_interface import import_art

    options.model = EMBEDDED if options.model == "embedded" else options.model
    options.seeds, options.discount, options.max_importance = options.seeds or 3, options.discount or [0.5], 1.3
    if options.quick:
        options.seeds, options.windows, options.most, options.questions = 1, 1, 1, 4
    import_art()
    torch.set_num_threads(1)
    gc.freeze()
    with tempfile.TemporaryDirectory() as nowhere:
        options.keep = options.keep or Path(nowhere)
        run(options)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="20, or 3 on a language model")
    parser.add_argument("--luck", type=float, nargs="+", default=[0.0, 0.2])
    parser.add_argument("--discount", type=float, nargs="+", help="0, 0.5 and 1, or 0.5 on a language model")
    parser.add_argument("--quick", action="store_true", help="a short run")
    model = parser.add_argument_group("on a language model")
    model.add_argument("--model", help="'embedded', or a directory")
    model.add_argument("--keep", type=Path, help="where each run's result is kept (by default nowhere)")
    model.add_argument("--windows", type=int, default=2, help="in each step")
    model.add_argument("--most", type=int, default=24, help="steps")
    model.add_argument("--questions", type=int, default=12, help="hours that a policy is asked about before each step")
    model.add_argument("--learning-rate", type=float, default=7e-4)
    model.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    options = parser.parse_args()
    if options.model is not None:
        return on_a_language_model(options)
    options.seeds, options.discount = options.seeds or 20, options.discount or [0.0, 0.5, 1.0]
    if options.quick:
        options.seeds, options.luck, options.discount = 4, [0.0], [0.5]
    print("luck  credit               steps to read   share of the steps")
    for luck in options.luck:
        whole = np.array([steps_needed(seed, luck, None) for seed in range(options.seeds)], dtype=float)
        for discount in (None, *options.discount):
            found = np.array([steps_needed(seed, luck, discount) for seed in range(options.seeds)], dtype=float)
            name = "whole trajectories" if discount is None else f"decisions, {discount:.1f}"
            error = found.std(ddof=1) / np.sqrt(options.seeds)
            share = (found / whole).mean(), (found / whole).std(ddof=1) / np.sqrt(options.seeds)
            print(
                f"{luck:4.1f}  {name:20s} {found.mean():5.1f} ± {error:.1f}    {share[0]:.2f} ± {share[1]:.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
