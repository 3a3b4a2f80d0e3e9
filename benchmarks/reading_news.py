"""Whether a model reads the news: valid replies, and the direction of the valid ones, on trained and unseen words.

    python benchmarks/reading_news.py                            the untrained embedded model
    python benchmarks/reading_news.py --checkpoint DIR ...       and checkpoints (step folders of a home)
    python benchmarks/reading_news.py --auc                      and how well BUY is preferred after good news to bad

Each model is asked greedily (one reply) and at temperature 1. Beside it a policy that is always valid and picks at
random, and the script that knows the words. 95% intervals: Wilson's for one reply a question, otherwise a bootstrap
over questions. ``both`` is the share of all replies that are valid and right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from data_bridge.art_converter import ScoreRequest
from trainer.inference.base_model import EMBEDDED, model_directory
from trainer.inference.chat_models import Engine, EngineModel
from trainer.world.actions import BUY, MAX_REPLY_TOKENS, SELL, Decision
from trainer.world.chance import bits, pick
from trainer.world.headlines import direction_of
from trainer.world.questions import COLUMNS, Question, questions

Replies = Sequence[Sequence[str]]
"""The replies to each question."""


async def ask(model: EngineModel, asked: Sequence[Question], temperature: float, samples: int, seed: int) -> Replies:
    """Some questions at a time, so that neighbours, which share their examples, are read together."""
    replies: list[list[str]] = []
    for start in range(0, len(asked), 16):
        part = await asyncio.gather(
            *(
                model.chat(
                    question.messages,
                    n=samples,
                    temperature=temperature,
                    max_tokens=MAX_REPLY_TOKENS,
                    seed=bits(seed, question.headline) % 2**31,
                )
                for question in asked[start : start + 16]
            )
        )
        replies += [[completion.text for completion in completions] for completions in part]
    return replies


def scripted(asked: Sequence[Question], choose: Callable[[Question], int]) -> Replies:
    return [[str(Decision(BUY if choose(one) > 0 else SELL, one.ticker, 20))] for one in asked]


def show(name: str, column: str, asked: Sequence[Question], replies: Replies) -> None:
    taken = [[one.taken(reply) for reply in said] for one, said in zip(asked, replies, strict=True)]
    given = np.array([len(own) for own in taken])
    valid = np.array([sum(way is not None for way in own) for own in taken])
    right = np.array([sum(way == one.direction for way in own) for one, own in zip(asked, taken, strict=True)])
    bought = np.array([own.count(1) for own in taken])
    figures = (interval(valid, given), interval(right, valid), interval(right, given))
    share = f"{bought.sum() / max(1, valid.sum()):.2f}"
    print(f"{name:22s} {column:15s} {figures[0]:19s} {figures[1]:19s} {figures[2]:19s} {share}", flush=True)


def interval(hits: Any, of: Any) -> str:
    """A share with its interval."""
    from scipy.stats import binomtest, bootstrap

    total = int(of.sum())
    if total == 0:
        return "none"
    if of.max() <= 1:
        bounds = binomtest(int(hits.sum()), total).proportion_ci(method="wilson")
    else:
        answered = of > 0
        bounds = bootstrap(
            (hits[answered], of[answered]),
            lambda hit, out_of, axis: hit.sum(axis=axis) / out_of.sum(axis=axis),
            paired=True,
            method="percentile",
            n_resamples=2000,
            rng=0,
        ).confidence_interval
    return f"{hits.sum() / total:.2f} [{bounds.low:.2f}, {bounds.high:.2f}]"


def auc(base: Path, checkpoint: Path | None, asked: Sequence[Question], threads: int) -> float:
    """How often BUY is preferred more after good news than after bad, over all pairs: 0.5 is no reading at all."""
    import torch
    from scipy.stats import mannwhitneyu

    from trainer.inference.policy import CpuPolicy

    torch.set_num_threads(threads)
    rank = json.loads((checkpoint / "adapter_config.json").read_text())["r"] if checkpoint is not None else 1
    policy = CpuPolicy(base, rank=rank, learning_rate=0.0, seed=0)
    if checkpoint is not None:
        policy.load(checkpoint)
    preferred: dict[int, list[float]] = {1: [], -1: []}
    for one in asked:
        both = policy.score([ScoreRequest(one.messages, str(Decision(verb, one.ticker, 20))) for verb in (BUY, SELL)])
        buy, sell = (sum(scored.logprobs) for scored in both if scored is not None)
        preferred[one.direction].append(buy - sell)
    return float(mannwhitneyu(preferred[1], preferred[-1]).statistic / (len(preferred[1]) * len(preferred[-1])))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, nargs="+", default=[], metavar="DIR", help="folders with an adapter")
    parser.add_argument("--base-model", default=EMBEDDED)
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--questions", type=int, default=160, help="in each column")
    parser.add_argument("--samples", type=int, default=4, help="replies to each question at temperature 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--auc", action="store_true", help="also compare the likelihoods of BUY and SELL")
    options = parser.parse_args()
    if options.quick:
        options.questions, options.samples = 16, 1
    base = model_directory(options.base_model, options.home)
    asked = {name: questions(options.questions, *families, options.seed) for name, families in COLUMNS.items()}
    print(f"{'':22s} {options.questions} of each     {'valid':19s} {'right given valid':19s} {'both':19s} BUY of valid")
    for column, own in asked.items():
        show("random valid", column, own, scripted(own, lambda one: pick((1, -1), options.seed, "coin", one.headline)))
        show("script that reads", column, own, scripted(own, lambda one: direction_of(one.headline, one.ticker)))
    engine = Engine(base, threads=options.threads)
    try:
        for checkpoint in (None, *options.checkpoint):
            name = checkpoint.name if checkpoint is not None else "base"
            model = engine.model(checkpoint, name)
            for column, own in asked.items():
                show(f"{name}, greedy", column, own, await ask(model, own, 0.0, 1, options.seed))
                replies = await ask(model, own, 1.0, options.samples, options.seed)
                show(f"{name}, T=1", column, own, replies)
    finally:
        await engine.close()
    if options.auc:
        for checkpoint in (None, *options.checkpoint):
            name = checkpoint.name if checkpoint is not None else "base"
            for column, own in asked.items():
                print(f"{name:22s} {column:15s} AUC {auc(base, checkpoint, own, options.threads or 1):.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
