"""What a game of this size costs in a week: computed from unit costs that are measured here, now.

    python benchmarks/scaling.py --agents 100000

Measured on one core: reading and checking a trajectory, and preparing a judge's prompt for a group. The rest are
assumptions, printed with the result and changed by flags. No price of a GPU and no time of training is measured here:
``benchmarks/training.py`` does that.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.quality import Rules, check
from data_bridge.reader import WindowReader
from tests.builders import NOW, hours_before, insert_window, recorder_steps
from trainer.config.sections import GroupingSettings
from trainer.judge.prompt import fit, load_rubric
from trainer.judge.view import view_of
from trainer.plan.grouping import form_groups
from trainer.types import Group

HOURS = 24 * 7


async def unit_costs(decisions: int, group: int) -> tuple[float, float, float]:
    """CPU seconds of reading and checking one trajectory and of preparing one prompt; bytes of a trajectory."""
    home = Path(tempfile.mkdtemp(prefix="scaling-"))
    server = EmbeddedServer(home / "postgres", options={"fsync": "off"})
    server.start()
    try:
        async with open_database(server.url(), home, migrate=True) as database:
            for window_id in hours_before(number=20):
                await insert_window(database.pool, window_id, agents=40, steps=recorder_steps(decisions))
            size = await database.pool.fetchval('SELECT avg(octet_length("stepsJson")) FROM trajectories')
            rules = Rules(now=NOW)
            reader = WindowReader(database, rules)
            refs = await reader.discover()
            async for window in reader.stream(refs):  # the first pass also builds decoders and plans
                check(window, rules)
            started, rows, groups = time.process_time(), 0, list[Group]()
            async for window in reader.stream(refs):
                checked = check(window, rules)
                rows += len(checked.usable)
                groups += form_groups(checked, GroupingSettings(max_group=group), 0).groups
            reading = (time.process_time() - started) / rows
            rubric, started = load_rubric("trading"), time.process_time()
            for one in groups:
                fit(view_of(one), rubric, 24_000, with_steps=False)
            return reading, (time.process_time() - started) / len(groups), float(size)
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def spoken(seconds: float) -> str:
    for unit, name in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.6, help="of its hours in which an agent plays")
    parser.add_argument("--decisions", type=int, default=10)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs=2, default=(8_000, 500), help="of one judge call, in and out")
    parser.add_argument("--price", type=float, nargs=2, default=(0.25, 2.0), help="dollars per million tokens")
    parser.add_argument("--answer", type=float, default=5.0, help="seconds of one judge call")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 2_000])
    chosen = parser.parse_args()
    reading, preparing, size = asyncio.run(unit_costs(chosen.decisions, chosen.group))
    trajectories = chosen.agents * HOURS * chosen.share
    groups = trajectories / chosen.group
    calls = groups * chosen.orders
    dollars = calls * sum(tokens * price for tokens, price in zip(chosen.tokens, chosen.price, strict=True)) / 1e6
    print(f"measured: {reading * 1e6:.0f} µs to read and check a trajectory of {size / 1e3:.1f} kB, ", end="")
    print(f"{preparing * 1e3:.1f} ms to prepare a prompt (CPU time of this process)")
    print(f"a week of {chosen.agents:,} agents: {trajectories:,.0f} trajectories, {groups:,.0f} groups")
    print(f"  read and check     {spoken(trajectories * reading)} of one core, {trajectories * size / 1e9:,.0f} GB")
    print(f"  prepare prompts    {spoken(calls * preparing)} of one core")
    print(f"  judge              {calls:,.0f} calls, ${dollars:,.0f}")
    for number in chosen.in_flight:
        print(f"    {number:>5} in flight  {spoken(calls * chosen.answer / number)}")
    units = groups / 64
    print(f"  units              {units:,.0f} of 64 groups, {64 * chosen.group * size / 1e6:,.0f} MB of JSON each")
    hourly = trajectories / HOURS * size
    print(f"  one hourly window  {hourly / 1e6:,.0f} MB of JSON; read in parts, 4 MB of it are in memory")


if __name__ == "__main__":
    main()
