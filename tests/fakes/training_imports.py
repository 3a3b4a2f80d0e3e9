"""What a CPU training process imports, in one place, for a server that forks such processes."""
# ruff: noqa: E402  # garbage is not looked for while they are imported

import gc
import os

gc.disable()  # nothing below is garbage, and each process that is forked would look through it again

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
import trainer.serve.app
import trainer.train.backends.cpu

gc.freeze()
gc.enable()

__all__ = ["art", "asyncpg", "openai", "peft", "torch", "trainer", "transformers"]
