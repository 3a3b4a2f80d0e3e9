"""The closed loop with play and judging beside training (``--max-lag 1``) against one after the other.

    python benchmarks/side_by_side.py [--days 8] [--seconds 15] [--seeds 20] [--quick]

**Speed.** The loop as a command runs it, on an embedded Postgres and a tiny model, with a judge that answers after as
many seconds as a step takes, both waits as an endpoint's and a remote trainer's are: so a busy machine changes the
figure only through what it adds to the rest. One step a day. If stages overlapped perfectly, the loop would gain their
sum over the longest of them; the goal is nine tenths of that. Printed for the whole run, with the first day's play and
judging, which nothing can overlap, and for the days from the end of the first to the end of the last.

**Score.** What the lag costs: a softmax policy behind the real credit, conversion, packing, loss and optimizer (as in
``off_policy.py``), two steps a day, each day played by the newest policy or by that of a day before. The chance of the
right answer over all hours at the end, mean and 95 % interval over seeds, and that of the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from time import monotonic
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from off_policy import GROUPS, SoftmaxPolicy, Week, judged, make_step_on, small_tokenizer, step_settings

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.migrate import apply
from tests.builders_run import Said
from tests.builders_training import make_trainee
from tests.tiny_model import tiny_model_directory
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.judge.outcome import OutcomeJudge
from trainer.run import closed_loop
from trainer.run import train as training
from trainer.train.backends.art_interface import import_art
from trainer.train.backends.cpu import CpuBackend

GOAL = 0.9
HOURS = 4
STEPS_A_DAY = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0, help="of a step, and of a judge's answer")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--max-importance", type=float, default=1.3)
    parser.add_argument("--quick", action="store_true", help="four short days, three seeds")
    options = parser.parse_args()
    if options.quick:
        options.days, options.seconds, options.seeds = 4, 2.0, 3
    import_art()
    is_fast = asyncio.run(speed(options))
    asyncio.run(score(options))
    return 0 if is_fast or options.quick else 1


async def speed(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory(prefix="hs-") as folder:
        os.chmod(folder, 0o711)
        server = EmbeddedServer(Path(folder) / "pg")
        server.start()
        try:
            alone, stages, ends_alone = await loop(server, Path(folder), options, lag=0)
            beside, _, ends_beside = await loop(server, Path(folder), options, lag=1)
        finally:
            server.stop()
    bound = sum(stages.values()) / max(stages.values())
    parts = ", ".join(f"{name} {seconds / options.days:.2f}" for name, seconds in stages.items())
    print(f"{options.days} days; seconds a day: {parts}")
    print(f"one after the other {alone:.1f} s, side by side {beside:.1f} s: {alone / beside:.2f} times as fast")
    steady = (ends_alone[-1] - ends_alone[0]) / (ends_beside[-1] - ends_beside[0])
    print(f"sum/max is {bound:.2f}: {alone / beside / bound:.2f} of it in the whole run,")
    print(f"after the first day {steady:.2f} times as fast, {steady / bound:.2f} of it  (goal {GOAL})")
    return steady >= GOAL * bound


async def loop(
    server: EmbeddedServer, folder: Path, options: argparse.Namespace, *, lag: int
) -> tuple[float, dict[str, float], list[float]]:
    """How long the loop took, and each of its stages, in seconds; and when each day's training ended."""
    import asyncpg

    name, home = f"lag{lag}", folder / f"home{lag}"
    admin = await asyncpg.connect(server.url())
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    connection = await asyncpg.connect(server.url(name))
    await apply(connection)
    await connection.close()
    tiny = str(tiny_model_directory(folder / "tiny"))
    settings = settings_from(
        TrainSettings,
        home=home,
        base_model=tiny,
        backend="cpu",
        threads=1,
        lora_rank=2,
        iterations=options.days,
        windows_per_iteration=HOURS,
        groups_per_step=HOURS,
        agents=4,
        stop_on=(),
        undo_on=(),
        held_out_share=0.0,
        distil="off",
        until="2026-10-10T00:00",
        max_lag=lag,
    )

    async def not_evaluated(*_: Any) -> None: ...

    stages, ends = dict.fromkeys(("play", "judge", "train"), 0.0), list[float]()
    judging = OutcomeJudge.judge

    async def late(judge: OutcomeJudge, group: Any) -> Any:
        started = monotonic()
        await asyncio.sleep(options.seconds)
        verdict = await judging(judge, group)
        stages["judge"] += (monotonic() - started) / HOURS  # a day's groups are judged at the same time
        return verdict

    with (
        patch.object(training, "after_training", not_evaluated),
        patch.object(OutcomeJudge, "judge", late),
        timed(closed_loop, "play_windows", stages, "play", 0.0, []),
        timed(CpuBackend, "train", stages, "train", options.seconds, ends),
    ):
        async with open_database(server.url(name), home) as database:
            started = monotonic()
            run, _ = await training.train(settings, database, tiny, Said(), simulated=True)
            seconds = monotonic() - started
    assert run.progress.steps == options.days, "one step a day"
    return seconds, stages, ends


@contextmanager
def timed(owner: Any, name: str, stages: dict[str, float], stage: str, at_least: float, ends: list[float]) -> Any:
    """The seconds spent in ``owner.name``, none of whose calls is shorter than ``at_least``, and when each ended."""
    real: Callable[..., Coroutine[Any, Any, Any]] = getattr(owner, name)

    async def measured(*arguments: Any, **how: Any) -> Any:
        started = monotonic()
        result = await real(*arguments, **how)
        await asyncio.sleep(max(0.0, at_least - (monotonic() - started)))
        ends.append(monotonic())
        stages[stage] += ends[-1] - started
        return result

    with patch.object(owner, name, measured):
        yield


async def score(options: argparse.Namespace) -> None:
    days, tokenizer = 8, small_tokenizer()
    right = {
        lag: [await learnt(tokenizer, lag, seed, days, options) for seed in range(options.seeds)] for lag in (0, 1)
    }
    for lag, values in right.items():
        print(f"--max-lag {lag}: chance of the right answer {interval(values)} after {days * STEPS_A_DAY} steps")
    paired = [late - fresh for fresh, late in zip(right[0], right[1], strict=True)]
    print(f"difference of the lag, paired by seed: {interval(paired)} ({options.seeds} seeds)")


async def learnt(tokenizer: Any, lag: int, seed: int, days: int, options: argparse.Namespace) -> float:
    trainee = make_trainee(min_spread=0.0)
    settings, policy = step_settings(trainee, options), SoftmaxPolicy(tokenizer, options.learning_rate, seed)
    week, judge = Week(policy, random.Random(f"play {seed}")), random.Random(f"judge {seed}")

    def play(step: int) -> list[Any]:
        return [week.group(step) for _ in range(STEPS_A_DAY * GROUPS)]

    ahead = play(0)
    for day in range(days):
        first = day * STEPS_A_DAY
        hours = ahead
        if lag:
            ahead = play(first)
        for number in range(STEPS_A_DAY):
            part = hours[number * GROUPS : (number + 1) * GROUPS]
            groups = [judged(members, is_right, "true", judge) for members, is_right in part]
            await make_step_on(policy, trainee, groups, first + number, settings)
        if not lag:
            ahead = play(first + STEPS_A_DAY)
    return policy.right()


def interval(values: list[float]) -> str:
    from scipy.stats import t

    mean = fmean(values)
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


if __name__ == "__main__":
    sys.exit(main())
