"""What a CPU training process imports, in one place, for a server that forks such processes."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import art
import asyncpg
import openai
import peft
import torch
import transformers

import trainer.cli.train_mmo
import trainer.judge.open
import trainer.run.train
import trainer.train.backends.cpu

__all__ = ["art", "asyncpg", "openai", "peft", "torch", "trainer", "transformers"]
