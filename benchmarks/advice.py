"""How advice does: recorded replies resampled over seeds, and the latency of a proposal through the real servers.

    python benchmarks/advice.py                          the tables from tests/data/advice_replies.json, 100 seeds
    python benchmarks/advice.py --latency                and p50 and p95 of a proposal: console, serve, the CPU model
    python benchmarks/advice.py --record --checkpoint DIR --home HOME
                                                         ask a checkpoint (a step folder of a home) and record it

The questions come from worlds that nobody plays: no evaluation window is consumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

REPLIES = Path(__file__).resolve().parents[1] / "tests" / "data" / "advice_replies.json"
_TOGETHER = 8


async def record(options: argparse.Namespace) -> None:
    """Replies of a checkpoint at temperature 1 with their log-probabilities, as the tests read them."""
    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.inference.chat_models import Engine
    from trainer.world.actions import MAX_REPLY_TOKENS
    from trainer.world.chance import bits
    from trainer.world.questions import questions

    engine = Engine(model_directory(EMBEDDED, options.home), threads=options.threads)
    model = engine.model(options.checkpoint, options.checkpoint.name)
    families = ("trained", "unseen")
    asked = [one for words in families for one in questions(options.questions // len(families), words, "trained")]
    texts: dict[str, int] = {}
    rows = []
    try:
        for start in range(0, len(asked), _TOGETHER):
            some = asked[start : start + _TOGETHER]
            replies = await asyncio.gather(
                *(
                    model.chat(
                        one.messages,
                        n=options.samples,
                        temperature=1.0,
                        max_tokens=MAX_REPLY_TOKENS,
                        seed=bits("advice", one.headline) % 2**31,
                    )
                    for one in some
                )
            )
            for one, own in zip(some, replies, strict=True):
                said = [
                    [texts.setdefault(reply.text, len(texts)), round(sum(reply.logprobs), 3), len(reply.logprobs)]
                    for reply in own
                ]
                rows.append({"ticker": one.ticker, "direction": one.direction, "words": one.words, "replies": said})
            print(f"{len(rows)} of {len(asked)} questions", flush=True)
    finally:
        await engine.close()
    source = f"{options.checkpoint.name} of a training with the defaults, {options.samples} replies at temperature 1"
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    head = json.dumps({"source": source, "texts": list(texts)}, indent=1)[:-2]
    options.replies.write_text(f'{head},\n "questions": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=Path, default=REPLIES, metavar="FILE")
    parser.add_argument("--record", action="store_true", help="make that file anew")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="the step folder that is asked")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--questions", type=int, default=320)
    parser.add_argument("--samples", type=int, default=12, help="replies that are recorded for each question")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.record:
        asyncio.run(record(options))


if __name__ == "__main__":
    main()
