"""How fast the simulated market plays into Postgres, and how fast the embedded model plays it.

    python benchmarks/world.py              # scripted agents: at least 300 trajectories per second
    python benchmarks/world.py --embedded   # 12 windows x 8 agents of the embedded model: under two minutes

A separate Postgres is started for the run, with its usual durable settings, and removed afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.database import Database, open_database
from data_bridge.window_ids import windows_from
from trainer.world.agents import Agent, model_cast, scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows
from trainer.world.player import Player

START = "2026-03-02T00:00"
WANTED_PER_SECOND = 300
MAX_SECONDS = 120


async def in_memory(market: Market, cast: tuple[Agent, ...], windows: tuple[str, ...]) -> float:
    started = time.perf_counter()
    async for _ in Player(market, cast).play(windows):
        pass
    return time.perf_counter() - started


async def scripted(database: Database, spool: Path, quick: bool) -> bool:
    print(f"{'scripted':34s} {'in memory':>12s} {'into Postgres':>14s} {'of the goal of 300':>18s}")
    enough = True
    for agents, decisions, windows in ((8, 1, 168), (8, 5, 120), (100, 3, 20)):
        windows = windows // 4 if quick else windows
        market = Market(agents * 100 + decisions, stage="several", decisions=decisions)
        cast = scripted_cast(agents, market.seed)
        hours = windows_from(f"2026-0{decisions + 1}-01T00:00", windows)
        trajectories = agents * windows
        alone = trajectories / await in_memory(market, cast, hours)
        started = time.perf_counter()
        await play_windows(database, spool, market, cast, hours, write_together=12)
        written = trajectories / (time.perf_counter() - started)
        enough &= written >= WANTED_PER_SECOND
        name = f"{windows} windows x {agents} agents x {decisions}"
        print(f"{name:34s} {alone:10.0f}/s {written:12.0f}/s {written / WANTED_PER_SECOND:16.1f}x")
    return enough


async def embedded(database: Database, spool: Path, home: Path, quick: bool) -> bool:
    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.inference.chat_models import Engine
    from trainer.world.agents import ChatPolicy

    directory = model_directory(EMBEDDED, home)  # converted once per machine, not part of playing
    windows = windows_from(START, 4 if quick else 12)
    engine = Engine(directory)
    try:
        market = Market(7)
        cast = model_cast(8, market.seed, ChatPolicy(engine.model(None, "hindsight@step0"), 0.8))
        started = time.perf_counter()
        tally = await play_windows(database, spool, market, cast, windows, lookahead=7)
        seconds = time.perf_counter() - started
    finally:
        await engine.close()
    count = """SELECT count(*) FROM trajectories, jsonb_array_elements("stepsJson"::jsonb) step,
        jsonb_array_elements(step -> 'llmCalls') call
        WHERE call ->> 'model' = 'hindsight@step0'
          AND jsonb_array_length(call -> 'completionTokenIds') = jsonb_array_length(call -> 'completionLogprobs')"""
    with_tokens = await database.pool.fetchval(count)
    limit = MAX_SECONDS * len(windows) / 12
    print(
        f"embedded: {tally.trajectories} trajectories in {seconds:.1f} s ({seconds / limit:.0%} of the limit), loading "
        f"the model included; valid actions {tally.valid_share:.0%}; {with_tokens} calls with tokens and logprobs"
    )
    return seconds < limit and with_tokens == tally.trajectories


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--embedded", action="store_true", help="the embedded model instead of scripted agents")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hindsight-bench-") as folder:
        own = Path(folder)
        async with open_database(None, own) as database:
            if arguments.embedded:
                fine = await embedded(database, own / "spool", arguments.home, arguments.quick)
            else:
                fine = await scripted(database, own / "spool", arguments.quick)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
