"""Judged groups as verl's ``DataProto``: what its actor updates on, without a rollout of its own.

    python scripts/traces.py export groups.parquet --groups
    python examples/groups_for_verl.py groups.parquet --tokenizer Qwen/Qwen2.5-7B-Instruct

``data_of`` gives the columns by the names that verl's PPO trainer uses after its rollout, reward and advantage. With
verl installed, ``DataProto.from_single_dict(data_of(rows, tokenizer))`` is the batch, and
``actor_rollout_wg.update_actor(batch)`` one update on it. ``rollout_log_probs`` are those of the policy that sampled;
``old_log_probs`` are set to them too, for a first update right after the play. Later ones compute ``old_log_probs``
with the actor (``compute_log_prob``), and verl weighs by the ratio of the two, truncated (its rollout correction).
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows that have what a ratio needs: the sampled tokens and their log-probabilities."""
    rows = pl.read_parquet(path).to_dicts()
    return [row for row in rows if row["token_ids"] and row["logprobs"]]


def data_of(rows: list[dict[str, Any]], tokenizer: Any) -> dict[str, Any]:
    """Tensors of [rows, tokens], prompts filled up on the left and responses on the right, and names of each row."""
    prompts = [_prompt(row, tokenizer) for row in rows]
    replies = [row["token_ids"] for row in rows]
    before, after = max(map(len, prompts)), max(map(len, replies))
    shape, pad = (len(rows), after), int(tokenizer.pad_token_id or 0)
    input_ids = torch.full((len(rows), before + after), pad)
    attention = torch.zeros(len(rows), before + after, dtype=torch.long)
    logprobs, rewards, advantages = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for place, (row, prompt, reply) in enumerate(zip(rows, prompts, replies, strict=True)):
        own = slice(before - len(prompt), before + len(reply))
        input_ids[place, own] = torch.tensor(prompt + reply)
        attention[place, own] = 1
        logprobs[place, : len(reply)] = torch.tensor(row["logprobs"])
        advantages[place, : len(reply)] = row["advantage"]
        rewards[place, len(reply) - 1] = row["reward"]  # verl puts a reply's reward on its last token
    return {
        "prompts": input_ids[:, :before],
        "responses": input_ids[:, before:],
        "input_ids": input_ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "response_mask": attention[:, before:],
        "old_log_probs": logprobs,
        "rollout_log_probs": logprobs.clone(),
        "token_level_scores": rewards,
        "token_level_rewards": rewards.clone(),
        "advantages": advantages,
        "returns": advantages.clone(),
        "uid": np.array([row["group_id"] for row in rows], dtype=object),
    }


def _prompt(row: dict[str, Any], tokenizer: Any) -> list[int]:
    encoded = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Show judged groups as verl's actor takes them.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", required=True)
    options = parser.parse_args()
    from transformers import AutoTokenizer

    rows = rows_of(options.file)
    for name, column in data_of(rows, AutoTokenizer.from_pretrained(options.tokenizer)).items():
        print(f"{name}: {list(column.shape)} {column.dtype}")
    print(f"{len(rows)} responses in {len({row['group_id'] for row in rows})} groups")


if __name__ == "__main__":
    main()
