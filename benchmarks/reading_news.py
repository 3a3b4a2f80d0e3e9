"""Whether a model reads the news: valid replies, and the direction of the valid ones, on trained and unseen words.

    python benchmarks/reading_news.py                            the untrained embedded model
    python benchmarks/reading_news.py --checkpoint DIR ...       and checkpoints (step folders of a home)
    python benchmarks/reading_news.py --world quests             the same about roads: GO stands for BUY, GUARD for SELL
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
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.scoring import ScoreRequest
from trainer.evaluate.reading import Replies, as_read, ask, at_random, figures_of, marked
from trainer.evidence import UNSEEN_TICKERS, Reader
from trainer.inference.base_model import EMBEDDED, model_directory
from trainer.inference.chat_models import Engine
from trainer.world.questions import COLUMNS
from trainer.world.rules import AnyQuestion
from trainer.world.worlds import RULES


def show(name: str, column: str, asked: Sequence[AnyQuestion], replies: Replies) -> None:
    figures = figures_of(Reader.CANDIDATE, column, marked(asked, replies))
    shares = (figures.valid, figures.right_of_valid, figures.both)
    told = "".join(f" {'none' if one is None else one.told():19s}" for one in shares)
    taken = [one.taken(reply) for one, said in zip(asked, replies, strict=True) for reply in said]
    bought = taken.count(1) / max(1, len(taken) - taken.count(None))
    print(f"{name:22s} {column:15s}{told} {bought:.2f}", flush=True)


def auc(base: Path, checkpoint: Path | None, asked: Sequence[AnyQuestion], threads: int) -> float:
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
        both = policy.score([ScoreRequest(one.messages, one.answer(direction)) for direction in (1, -1)])
        buy, sell = (sum(scored.logprobs) for scored in both if scored is not None)
        preferred[one.direction].append(buy - sell)
    return float(mannwhitneyu(preferred[1], preferred[-1]).statistic / (len(preferred[1]) * len(preferred[-1])))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, nargs="+", default=[], metavar="DIR", help="folders with an adapter")
    parser.add_argument("--world", choices=list(RULES), default="market")
    parser.add_argument("--columns", nargs="+", default=[], help="ask only these, such as 'unseen words'")
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
    rules = RULES[options.world]
    named = {UNSEEN_TICKERS: rules.unseen_names}
    asked = {
        named.get(column, column): rules.questions(options.questions, *families, options.seed)
        for column, families in COLUMNS.items()
        if not options.columns or named.get(column, column) in options.columns
    }
    print(f"{'':22s} {options.questions} of each     {'valid':19s} {'right given valid':19s} {'both':19s} BUY of valid")
    for column, own in asked.items():
        show("random valid", column, own, at_random(own, options.seed))
        show("script that reads", column, own, as_read(own))
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
