"""TRL's GRPO loss and backward on groups read from a file; run by ``training.py`` with TRL's own Python.

Prints one JSON line: seconds of CPU time per group (the best of the rounds), and peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path
from time import process_time


def main(model_directory: str, groups_file: str, rounds: int) -> None:
    import torch

    torch.set_num_threads(1)
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    groups = json.loads(Path(groups_file).read_text())
    size = len(groups[0]["replies"])
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model_directory),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=size,
            num_generations=size,
            use_cpu=True,
            bf16=False,
            beta=0.0,
            report_to=[],
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * size}),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    best = float("inf")
    for number in range(rounds):
        group = groups[number % len(groups)]
        inputs = {
            "prompt_ids": torch.tensor([group["prompt"]] * size),
            "prompt_mask": torch.ones(size, len(group["prompt"]), dtype=torch.long),
            "completion_ids": torch.tensor(group["replies"]),
            "completion_mask": torch.ones(size, len(group["replies"][0]), dtype=torch.long),
            "advantages": torch.tensor(group["advantages"]),
            "old_per_token_logps": torch.tensor(group["logprobs"]),
            "num_items_in_batch": torch.tensor(size * len(group["replies"][0])),
        }
        trainer.model.zero_grad()
        started = process_time()
        trainer._compute_loss(trainer.model, inputs).backward()
        best = min(best, process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"version": trl.__version__, "seconds": best, "memory_gb": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
