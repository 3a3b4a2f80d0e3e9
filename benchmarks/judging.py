"""How close the judge comes to the endpoint's own limit: many groups, many calls in flight, a slow endpoint.

The bound is what the endpoint's latency alone allows: groups / calls in flight * seconds per answer * orders. The
endpoint runs in its own process and answers honestly; verdicts go to a real Postgres, as in a run. The sequential time
is extrapolated from a measured sample.

    python benchmarks/judging.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.database import Database, open_database
from data_bridge.models import (
    Action,
    AgentTrajectory,
    EnvironmentState,
    LLMCall,
    NewsEvent,
    Step,
    StockOutcome,
    WindowOutcomes,
)
from data_bridge.window_ids import end_of, start_of
from trainer.config.sections import JudgeSecrets, JudgeSettings
from trainer.judge.open import open_judge
from trainer.run.judge_windows import judge_stream
from trainer.types import Group, JudgedGroup

ROOT = Path(__file__).resolve().parent.parent
SECONDS_AN_ANSWER = 0.5
IN_FLIGHT = 64
ORDERS = 2
WINDOW = "2026-03-02T10:00"
OBSERVATION = "ACME trades at 100, up 2 % today; volume is thin. Holders of BOLT wait for its figures. " * 20


def make_group(number: int, agents: int = 8) -> Group:
    """Eight agents with one decision each, about 4,000 tokens of observations."""
    news = (NewsEvent("ACME wins a large order"),)
    outcomes = WindowOutcomes(stocks=(StockOutcome("ACME", 100.0, 110.0, 10.0, news=news),))
    members = tuple(_trajectory(f"{number}-{agent}", pnl=10.0 * agent) for agent in range(agents))
    return Group(f"group-{number}", WINDOW, members, outcomes)


def _trajectory(name: str, pnl: float) -> AgentTrajectory:
    step = Step(
        state=EnvironmentState(balance=1000.0, lifetime_pnl=0.0),
        llm_calls=[LLMCall(user_prompt=f"{name}: {OBSERVATION}", response="BUY ACME 20%")],
        action=Action(action_type="BUY", parameters={"ticker": "ACME", "percent": 20}, success=True),
    )
    return AgentTrajectory(
        trajectory_id=name,
        agent_id=name,
        window_id=WINDOW,
        window_hours=1,
        start_time=start_of(WINDOW),
        end_time=end_of(WINDOW, 1),
        steps=[step],
        content_hash=name,
        size_bytes=2000,
        lifetime_pnl=pnl,
    )


@contextmanager
def endpoint() -> Iterator[str]:
    """The base URL of an honest judge that takes its time."""
    command = [sys.executable, "-m", "tests.fakes.judge_server", str(SECONDS_AN_ANSWER)]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.communicate()


async def measure(base_url: str, database: Database, numbers: range, in_flight: int) -> tuple[float, float]:
    """Wall and CPU seconds to judge the numbered groups, all of them for the first time."""
    settings = JudgeSettings(
        judge_model="judge",
        judge_base_url=base_url,
        judge_orders=ORDERS,
        judge_order_rule="all",
        judge_concurrency=in_flight,
        judge_timeout=timedelta(seconds=30),
    )

    made = [make_group(number) for number in numbers]  # creating them is not the judge's work

    async def groups() -> AsyncIterator[Group]:
        for group in made:
            yield group

    async with open_judge(settings, JudgeSecrets(), database, "benchmark") as judge:
        wall, cpu = time.perf_counter(), time.process_time()
        results = [result async for result in judge_stream(judge, groups(), in_flight)]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert len(results) == len(numbers)
    assert all(isinstance(result, JudgedGroup) and not result.cached for result in results), results[0]
    return wall, cpu


async def run(groups: int, sample: int, rounds: int) -> int:
    """0 if both goals are met."""
    bound = groups / IN_FLIGHT * SECONDS_AN_ANSWER * ORDERS
    with tempfile.TemporaryDirectory() as home, endpoint() as base_url:
        async with open_database(None, Path(home)) as database:
            await measure(base_url, database, range(-IN_FLIGHT, 0), IN_FLIGHT)  # imports, connections
            starts = range(0, rounds * groups, groups)
            measured = [await measure(base_url, database, range(at, at + groups), IN_FLIGHT) for at in starts]
            slow, _ = await measure(base_url, database, range(rounds * groups, rounds * groups + sample), 1)
    wall, cpu = sorted(measured)[rounds // 2]
    sequential = slow / sample * groups
    print(f"{groups} groups of 8, {ORDERS} orders, {IN_FLIGHT} calls in flight, {SECONDS_AN_ANSWER} s per answer")
    over = ", ".join(f"{each / bound - 1:+.1%}" for each, _ in measured)
    print(f"  wall {wall:.2f} s; bound {bound:.2f} s; {wall / bound - 1:+.1%} over the bound (goal: within 10 %)")
    if rounds > 1:
        print(f"  (the median of {rounds} rounds: {over})")
    print(
        f"  {sequential / wall:.1f} times as fast as one call after the other (goal: 30): "
        f"{sequential:.0f} s, extrapolated from {sample} groups in {slow:.1f} s"
    )
    print(f"  own CPU {cpu / groups * 1000:.1f} ms per group ({cpu / wall:.0%} of one core)")
    return 0 if wall <= 1.1 * bound and sequential >= 30 * wall else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    quick = parser.parse_args().quick
    return asyncio.run(run(groups=256, sample=2 if quick else 4, rounds=1 if quick else 3))


if __name__ == "__main__":
    sys.exit(main())
