"""A training step of the embedded model by one process and by several: equal results, and what adding up costs.

Both make two steps on the same random groups (prompt 200 tokens, reply 25, groups of 8), rank 16, the same seed. The
share of the all-reduce is that of the step in which it happens, so a busy machine affects both; the largest of the
steps counts. The speed-up needs idle cores, one for each rank, and is printed with the number of cores.

    python benchmarks/ranks.py              # one against two ranks, one thread each
    python benchmarks/ranks.py --ranks 4
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

MOST_DIFFERENT_GRADIENT, MOST_DIFFERENT_WEIGHT, MOST_SHARE = 1e-6, 1e-5, 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--groups", type=int, default=6, help="groups of a step")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two groups in a step")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the embedded model is cached")
    options = parser.parse_args()
    options.groups = 2 if options.quick else options.groups

    import torch
    from training import GROUP, make_groups, packed_group

    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.train.backends.ranks import Ranks

    torch.set_num_threads(1)
    base = model_directory(EMBEDDED, options.home)
    sequences = [packed_group(group) for group in make_groups(options.groups)]
    alone = Measured(base)
    for _ in range(options.steps):
        alone.step(sequences, None)
    ranks = Ranks.start(options.ranks, base, lora_rank=16, seed=0, threads=options.ranks)
    try:
        together = Measured(base)
        for _ in range(options.steps):
            together.step(sequences, ranks)
    finally:
        ranks.close()

    gradient = float((alone.gradients[0] - together.gradients[0]).abs().max())
    weight = float((alone.weights[1] - together.weights[1]).abs().max()) if options.steps > 1 else 0.0
    share = max(summed / whole for summed, whole in zip(together.summing, together.seconds, strict=True))
    print(f"{options.groups} groups of {GROUP}, {len(alone.gradients[0]):,} LoRA numbers, {os.cpu_count()} cores")
    print(f"first gradient, 1 against {options.ranks} ranks   differs by {gradient:.1e}  (at most 1e-6)")
    print(f"weights after two steps            differ by {weight:.1e}  (at most 1e-5)")
    print("ranks bitwise equal                yes: a step that ends has compared them")
    longest = max(together.summing) * 1000
    print(f"all-reduce                         {longest:.0f} ms, {share:.2%} of a step  (at most 1 %)")
    print(f"seconds a step                     {min(alone.seconds):.1f} alone, {min(together.seconds):.1f} together")
    met = gradient <= MOST_DIFFERENT_GRADIENT and weight <= MOST_DIFFERENT_WEIGHT and share <= MOST_SHARE
    return 0 if met else 1


class Measured:
    """A policy that makes steps, and what was seen of each."""

    def __init__(self, base: Path) -> None:
        from trainer.inference.policy import CpuPolicy
        from trainer.train.backends.cpu_step import StepSettings

        self._policy = CpuPolicy(base, rank=16, learning_rate=7e-4, seed=0)
        self._settings = StepSettings({"ppo": True, "epsilon": 0.2}, 7e-4, 1.0)
        self.seconds: list[float] = []
        self.summing: list[float] = []
        self.gradients: list[Any] = []
        self.weights: list[Any] = []

    def step(self, sequences: list[Any], ranks: Any) -> None:
        if ranks is None:
            self._update(sequences, None)
            return
        with ranks.step(self._policy, None):
            self._update(sequences, ranks)
        self.summing.append(ranks.seconds_summing)

    def _update(self, sequences: list[Any], ranks: Any) -> None:
        import torch

        from trainer.train.backends.cpu_step import accumulate, begin_update, finish_update

        started, trained = monotonic(), sum(one.trainable_tokens for one in sequences)
        begin_update(self._policy, self._settings)
        work = accumulate if ranks is None else ranks.accumulate
        loss, _ = work(self._policy, list(enumerate(sequences)), trained, self._settings)
        self.gradients.append(torch.cat([one.grad.reshape(-1) for one in self._policy.parameters()]))
        finish_update(self._policy, self._settings, loss)
        if ranks is not None:
            ranks.agree(self._policy)
        self.seconds.append(monotonic() - started)
        self.weights.append(torch.cat([one.detach().reshape(-1).clone() for one in self._policy.parameters()]))


if __name__ == "__main__":
    sys.exit(main())
