"""How fast a CPU training step is: against plain padded batches, against TRL, and against the machine itself.

All three train the same groups (prompt 200 tokens, reply 25, groups of 8) with the same LoRA on one thread.
Times are CPU time, the best of several rounds; the share of the matmul rate is the median over rounds, each
against the rate measured just before and after it, so that a busy machine affects both equally.

    python benchmarks/training.py            # with TRL, in its own environment (installed on the first run)
    python benchmarks/training.py --quick    # two rounds, no TRL
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

PROMPT, REPLY, GROUP = 200, 25, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds, no TRL")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of each; the best counts")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the embedded model is cached")
    parser.add_argument("--trl", type=Path, default=Path(tempfile.gettempdir()) / "hindsight-trl", help="TRL's venv")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 5)

    import torch

    from trainer.inference.base_model import EMBEDDED, model_directory

    torch.set_num_threads(1)
    base = model_directory(EMBEDDED, options.home)
    groups = make_groups(4)

    ours = Packed(base, groups)
    ours.seconds(0)  # the first call merges the adapter and allocates
    best_ours, best_rate, shares = float("inf"), 0.0, []
    for number in range(rounds):
        before, seconds, after = matmul_rate(), ours.seconds(number), matmul_rate()
        shares.append(ours.flops / seconds / ((before + after) / 2))
        best_ours, best_rate = min(best_ours, seconds), max(best_rate, before, after)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    best_plain = measured("plain", base, groups, rounds)["seconds"]

    share = median(shares)
    print(f"groups of {GROUP}, prompt {PROMPT}, reply {REPLY} tokens; one thread, fp32, LoRA rank 16")
    print(f"packed step      {GROUP / best_ours:7.2f} trajectories/s  ({best_ours:.2f} s per group)")
    print(
        f"plain padded     {GROUP / best_plain:7.2f} trajectories/s  ours is {best_plain / best_ours:.1f}x  (goal 2.5)"
    )
    if options.quick:
        print("TRL              left out (--quick)")
    else:
        report_trl(options.trl, base, groups, rounds, best_ours)
    print(f"fp32 matmul rate {best_rate / 1e9:7.1f} GFLOP/s        the step runs at {share:.0%} of it  (goal 55%)")
    print(f"peak memory      {memory:7.2f} GB             (goal under 4)")


def make_groups(number: int) -> list[dict[str, Any]]:
    """Random tokens: the time does not depend on what they say. Log-probabilities near those of such tokens."""
    source = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [source.randrange(1000, 40000) for _ in range(count)]

    return [
        {
            "prompt": tokens(PROMPT),
            "replies": [[*tokens(REPLY - 1), 2] for _ in range(GROUP)],
            "logprobs": [[-12.0] * REPLY for _ in range(GROUP)],
            "advantages": [source.uniform(-1, 1) for _ in range(GROUP)],
        }
        for _ in range(number)
    ]


class Packed:
    """Our step on one group at a time: the code that ``CpuBackend`` runs, without the optimizer's update."""

    def __init__(self, base: Path, groups: list[dict[str, Any]]) -> None:
        from trainer.inference.policy import CpuPolicy
        from trainer.train.backends.cpu_step import StepSettings

        self._policy = CpuPolicy(base, rank=16, learning_rate=1e-4, seed=0)
        self._sequences = [packed_group(group) for group in groups]
        self._settings = StepSettings({"ppo": True, "epsilon": 0.2}, 1e-4, 1.0)
        self.flops = needed_flops(self._policy)

    def seconds(self, number: int) -> float:
        from trainer.train.backends.cpu_step import backward

        sequence = self._sequences[number % len(self._sequences)]
        started = process_time()
        backward(self._policy, sequence, self._settings)
        return process_time() - started


def packed_group(group: dict[str, Any]) -> Any:
    """The group as ART's packing lays it out: the prompt but for its last token, then each reply behind that token."""
    import torch

    from trainer.train.backends.packing import PackedSequence

    shared = PROMPT - 1
    own = 1 + REPLY
    tokens = group["prompt"][:-1] + [token for reply in group["replies"] for token in [group["prompt"][-1], *reply]]
    groups = [0] * shared + [1 + reply for reply in range(GROUP) for _ in range(own)]
    mask = [False] * shared + ([False] + [True] * REPLY) * GROUP
    advantages = [0.0] * shared + [value for value in group["advantages"] for _ in range(own)]
    logprobs = [float("nan")] * shared + [value for row in group["logprobs"] for value in [float("nan"), *row]]
    return PackedSequence(
        {
            "tokens": torch.tensor([tokens]),
            "group_ids": torch.tensor([groups]),
            "parent_ids": torch.zeros(1, len(tokens), dtype=torch.long),
            "input_pos": torch.tensor([[*range(shared), *(list(range(shared, shared + own)) * GROUP)]]),
            "assistant_mask": torch.tensor([mask]),
            "logprobs": torch.tensor([logprobs]),
            "advantages": torch.tensor([advantages]),
            "weights": torch.tensor([mask]).float(),
        }
    )


def needed_flops(policy: Any) -> float:
    """The minimum of multiply-adds (times two) for the packed group: no padding, no masked pairs, no recomputing.

    Forward, and backward to the activations (the base weights are frozen), for the layers, the visible pairs of
    attention and the output layer on reply tokens; the adapter's factors get gradients of their own.
    """
    config = policy.config
    width, inner = config.hidden_size, config.intermediate_size
    keys = config.num_key_value_heads * config.head_dim
    layer = 2 * width * width + 2 * width * keys + 3 * width * inner
    adapter = 16 * (4 * width + 2 * (width + keys) + 3 * (width + inner))
    tokens = PROMPT - 1 + GROUP * (1 + REPLY)
    pairs = PROMPT**2 / 2 + GROUP * (1 + REPLY) * (PROMPT + REPLY / 2)
    layers = config.num_hidden_layers * (tokens * (2 * 2 * layer + 2 * 2 * adapter) + pairs * 2 * 2 * width * 3)
    head = GROUP * REPLY * 2 * 2 * width * config.vocab_size
    return float(layers + head)


def matmul_rate() -> float:
    """fp32 FLOP/s over about a second: the better of a square shape and the widest of the model's."""
    import torch

    best = 0.0
    for rows, inner, columns in ((1024, 1024, 1024), (407, 576, 1536)):
        left, right = torch.randn(rows, inner), torch.randn(inner, columns)
        flops = 2 * rows * inner * columns
        repeats = int(5e10 / flops)
        torch.mm(left, right)
        started = process_time()
        for _ in range(repeats):
            torch.mm(left, right)
        best = max(best, repeats * flops / (process_time() - started))
    return best


def plain_seconds(base: Path, groups: list[dict[str, Any]], rounds: int) -> float:
    """transformers and PEFT as they come: every reply with its whole prompt, logits on the reply only."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    best = float("inf")
    for number in range(rounds):
        group = groups[number % len(groups)]
        replies = torch.tensor(group["replies"])
        tokens = torch.cat([torch.tensor([group["prompt"]] * GROUP), replies], dim=1)
        old, advantages = torch.tensor(group["logprobs"]), torch.tensor(group["advantages"])[:, None]
        model.zero_grad()
        started = process_time()
        logits = model(tokens, logits_to_keep=REPLY + 1).logits[:, :-1]
        new = torch.log_softmax(logits, -1).gather(2, replies[..., None])[..., 0]
        ratio = (new - old).exp()
        loss = -torch.min(ratio * advantages, ratio.clip(0.8, 1.2) * advantages).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        best = min(best, process_time() - started)
    return best


def measured(what: str, base: Path, groups: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """``what`` in a separate process, with its own memory and caches."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "groups.json"
        file.write_text(json.dumps(groups))
        command = [sys.executable, __file__, f"--{what}-child", str(base), str(file), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report_trl(environment: Path, base: Path, groups: list[dict[str, Any]], rounds: int, best_ours: float) -> None:
    python = environment / "bin" / "python"
    try:
        if not python.exists():
            print(f"installing TRL into {environment} ...", file=sys.stderr)
            venv.create(environment, with_pip=True)
            install = [str(python), "-m", "pip", "install", "-q", "torch==2.13.0", "trl", "peft"]
            subprocess.run(install, check=True, capture_output=True, text=True)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "groups.json"
            file.write_text(json.dumps(groups))
            command = [str(python), str(Path(__file__).with_name("trl_step.py")), str(base.resolve()), str(file)]
            done = subprocess.run([*command, str(rounds)], check=True, capture_output=True, text=True, cwd=directory)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"TRL              not available: {(getattr(error, 'stderr', '') or str(error)).strip()[-300:]}")
        return
    result = json.loads(done.stdout.splitlines()[-1])
    seconds = result["seconds"]
    print(
        f"TRL {result['version']:<12} {GROUP / seconds:7.2f} trajectories/s  ours is {seconds / best_ours:.1f}x  "
        f"(goal 4; its peak memory {result['memory_gb']:.1f} GB)"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--plain-child":
        import torch

        torch.set_num_threads(1)
        child_groups = json.loads(Path(sys.argv[3]).read_text())
        print(json.dumps({"seconds": plain_seconds(Path(sys.argv[2]), child_groups, int(sys.argv[4]))}))
    else:
        main()
