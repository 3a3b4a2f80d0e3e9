"""How much the engine gains from batching: 32 agents with four decisions concurrently, against one by one.

python benchmarks/inference.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.models import ChatMessage
from trainer.inference.base_model import EMBEDDED, model_directory
from trainer.inference.chat_models import Engine, EngineModel

AGENTS, DECISIONS, TOKENS = 32, 4, 16


def prompt(decision: int) -> list[ChatMessage]:
    rules = "You trade one stock. Reply with one line: BUY or SELL, the ticker, and a share of your cash. " * 6
    news = f"Hour {decision}: ACME trades at {100 + decision}. Analysts expect a strong quarter number {decision}."
    return [ChatMessage(role="system", content=rules), ChatMessage(role="user", content=news)]


async def tokens_per_second(model: EngineModel, agents: int, *, together: bool) -> float:
    started = process_time()
    asked = [model.chat(prompt(agent % DECISIONS), max_tokens=TOKENS, seed=agent) for agent in range(agents)]
    answers = await asyncio.gather(*asked) if together else [await question for question in asked]
    written = sum(len(reply.token_ids) for replies in answers for reply in replies)
    return written / (process_time() - started)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ask fewer agents one by one")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the embedded model is cached")
    options = parser.parse_args()
    engine = Engine(model_directory(EMBEDDED, options.home), threads=1)
    model = engine.model(None, "base")
    await model.chat(prompt(0), max_tokens=2)  # load
    alone = await tokens_per_second(model, 4 if options.quick else AGENTS, together=False)
    together = await tokens_per_second(model, AGENTS, together=True)
    await engine.close()
    print(f"one by one   {alone:7.1f} tokens/s of CPU time")
    print(f"{AGENTS} together  {together:7.1f} tokens/s, {together / alone:.1f}x  (goal 3)")


if __name__ == "__main__":
    asyncio.run(main())
