"""Judged groups in the tensors of TRL's GRPO: train with its loss what was judged here.

    python scripts/traces.py export groups.jsonl --groups
    python examples/groups_for_trl.py groups.jsonl --tokenizer Qwen/Qwen2.5-7B-Instruct

``batch_of`` gives what ``GRPOTrainer._generate_and_score_completions`` returns: prompts padded on the left, completions
on the right, an advantage for each completion, the log-probabilities of the policy that sampled. So a trainer that
learns from a file instead of its own generation overrides that one method (TRL 0.2x and 1.x):

    class FromFile(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            return batch_of([one["row"] for one in inputs], self.processing_class)

with a dataset of ``{"prompt": row["messages"], "row": row}`` and ``num_generations`` rows of a group together.
"""

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import torch


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows that have what a ratio needs: the sampled tokens and their log-probabilities."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["token_ids"] and row["logprobs"]]


def batch_of(rows: list[dict[str, Any]], tokenizer: Any) -> dict[str, torch.Tensor]:
    """The rows as one batch of GRPO."""
    prompts = [_prompt(row, tokenizer) for row in rows]
    pad = int(tokenizer.pad_token_id or 0)
    prompt_ids, prompt_mask = _padded(prompts, pad, left=True)
    completion_ids, completion_mask = _padded([row["token_ids"] for row in rows], pad, left=False)
    logprobs, _ = _padded([row["logprobs"] for row in rows], 0.0, left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "old_per_token_logps": logprobs,
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": completion_mask.sum(),
    }


def _prompt(row: dict[str, Any], tokenizer: Any) -> list[int]:
    encoded = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def _padded(lists: list[list[Any]], pad: float, *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, lists))
    values, mask = [], []
    for one in lists:
        room = longest - len(one)
        values.append([pad] * room + one if left else one + [pad] * room)
        mask.append([0] * room + [1] * len(one) if left else [1] * len(one) + [0] * room)
    return torch.tensor(values), torch.tensor(mask)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show judged groups as TRL's GRPO takes them.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", required=True)
    options = parser.parse_args()
    from transformers import AutoTokenizer

    rows = rows_of(options.file)
    batch = batch_of(rows, AutoTokenizer.from_pretrained(options.tokenizer))
    for name, tensor in batch.items():
        print(f"{name}: {list(tensor.shape)} {tensor.dtype}")
    print(f"{len(rows)} completions in {len({row['group_id'] for row in rows})} groups")


if __name__ == "__main__":
    main()
