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
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

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
    from trainer.world.vocabulary import FamilyName

    engine = Engine(model_directory(EMBEDDED, options.home), threads=options.threads)
    model = engine.model(options.checkpoint, options.checkpoint.name)
    families: tuple[FamilyName, ...] = ("trained", "unseen")
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
    source = f"{options.checkpoint.name}, {options.samples} replies at temperature 1"
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    head = json.dumps({"source": source, "texts": list(texts)}, indent=1)[:-2]
    options.replies.write_text(f'{head},\n "questions": [\n{lines}\n]}}\n', encoding="utf-8")


def tables(seeds: int, trial: Callable[[int, float, float], Any], name: str) -> None:
    """What is shown, how much of it is right, and how far confidence is from the truth, over calibrations."""
    from tests.builders_advice import ASKED, CALIBRATED_ON, Trial

    print(f"{seeds} calibrations on {CALIBRATED_ON} windows each, then {ASKED} questions; {name}")
    print("luck  wanted  wanted reached  and half answered  answered  precision  error of confidence (at most 0.05 in)")
    for luck in (0.0, 0.2, 0.5, 1.0):
        for target in (0.75, 0.8):
            trials = [trial(seed, luck, target) for seed in range(seeds)]
            reached = [one for one in trials if one.precision is None or one.precision >= target]
            half = sum(one.answered >= 0.5 for one in reached)
            shown = [one.precision for one in trials if one.precision is not None]
            precision = f"{fmean(shown):.3f}" if shown else "none"

            def mean(of: Callable[[Trial], float], own: Sequence[Trial] = trials) -> float:
                return fmean(map(of, own))

            print(
                f"{luck:4.1f}  {target:6.2f}  {len(reached):14d}  {half:17d}  {mean(lambda one: one.answered):8.2f}"
                f"  {precision:>9s}  {mean(lambda one: one.error):.3f} ({sum(one.error <= 0.05 for one in trials)})",
                flush=True,
            )


def needed(seeds: int) -> None:
    """How many windows it takes until something is shown."""
    import numpy as np

    from tests.builders_advice import TARGET, hours
    from trainer.statistics.calibration import calibrate

    print(f"windows: share of calibrations that show anything at luck 0.2, wanted {TARGET}")
    for number in (60, 100, 168, 336, 600):
        found = [calibrate(hours(np.random.default_rng(seed), 0.2, number), TARGET) for seed in range(seeds)]
        print(f"  {number:3d}  {fmean(one is not None and one.threshold is not None for one in found):.2f}")


def shift(seeds: int) -> None:
    """Day by day after the world has changed: the share answered, and how much of it was right."""
    import numpy as np

    from tests.builders_advice import CALIBRATED_ON, TARGET, hours
    from trainer.statistics.calibration import calibrate

    for before, after in ((0.2, 1.0), (1.0, 0.2)):
        days: list[list[tuple[int, int]]] = [[] for _ in range(14)]
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            known = hours(rng, before, CALIBRATED_ON)
            for day in days:
                found = calibrate(known, TARGET)  # None: too little is known since a change
                today = hours(rng, after, 24, len(known))
                shown = [one.is_right for one in today if found is not None and found.shows(one.score)]
                day.append((len(shown), sum(shown)))
                known += today
        print(f"luck from {before} to {after}: day, answered, of it right")
        for number, day in enumerate(days, 1):
            shown_, right = (sum(column) for column in zip(*day, strict=True))
            print(f"  {number:2d}  {shown_ / seeds / 24:.2f}  {f'{right / shown_:.2f}' if shown_ else 'none'}")


async def latency(home: Path, checkpoint: Path | None, asked: int, samples: int) -> None:
    """p50 and p95 of a proposal: HTTP to the console, the ledger, HTTP to serve's routes, the model on this CPU."""
    import tempfile

    from data_bridge.database import open_database
    from tests.builders_console import opened_console
    from tests.builders_promotion import insert_checkpoint
    from trainer.inference.base_model import EMBEDDED, model_directory
    from trainer.inference.chat_models import Engine
    from trainer.promote.publish import publish
    from trainer.types import Serving
    from trainer.world.actions import MAX_REPLY_TOKENS
    from trainer.world.questions import questions

    engine = Engine(model_directory(EMBEDDED, home))
    try:
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            async with open_database(None, here) as database, served(engine, checkpoint, here / "served") as url:
                point = await insert_checkpoint(database, 1, backend="cpu", location=checkpoint or "base")
                await publish(
                    database, here, point.as_release(), Serving(url, "hindsight"), reason="benchmark", forced=True
                )
                values: dict[str, Any] = {"advice_samples": samples, "advice_tokens": MAX_REPLY_TOKENS}
                values["advice_timeout"] = timedelta(minutes=5)  # the first question loads the model
                async with (
                    opened_console(database, here, **values) as console,
                    console.client(timeout=600) as client,
                ):
                    seconds = []
                    for number, one in enumerate(questions(asked + 1, "trained", "trained")):
                        body = [{"role": m.role, "content": m.text()} for m in one.messages]
                        started = time.monotonic()
                        answer = await client.post(
                            "/api/v1/advice", json={"agent_id": f"agent-{number}", "messages": body}
                        )
                        seconds.append(time.monotonic() - started)
                        answer.raise_for_status()
                        assert answer.json()["reason"] == "not_calibrated", answer.text
    finally:
        await engine.close()
    own = sorted(seconds[1:])  # the first loads the model
    p50, p95 = (own[min(len(own) - 1, int(share * len(own)))] for share in (0.5, 0.95))
    print(
        f"latency of a proposal, {samples} replies, {len(own)} questions one by one: p50 {p50:.2f} s, p95 {p95:.2f} s"
    )


@asynccontextmanager
async def served(engine: Any, checkpoint: Path | None, home: Path) -> AsyncIterator[str]:
    """serve's own routes on a port; they answer with ``checkpoint``, or the untrained model."""
    import uvicorn

    from trainer.inference.base_model import EMBEDDED
    from trainer.inference.checkpoints import store_of
    from trainer.serve.app import make_app
    from trainer.serve.checkpoints import ServedCheckpoints

    def model(adapter: Path | None, name: str) -> Any:
        return engine.model(checkpoint, name)

    checkpoints = ServedCheckpoints(home, "hindsight", store_of(home, "hindsight"), model, base_model=EMBEDDED)
    with contextlib.closing(socket.socket()) as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(checkpoints, key=None), log_level="error"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replies", type=Path, default=REPLIES, metavar="FILE")
    parser.add_argument("--record", action="store_true", help="make that file anew")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="the step folder that is asked")
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--questions", type=int, default=320)
    parser.add_argument("--samples", type=int, default=12, help="replies that are recorded for each question")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--latency", action="store_true", help="also how long a proposal takes")
    parser.add_argument("--quick", action="store_true", help="10 seeds, 10 questions")
    options = parser.parse_args()
    if options.record:
        asyncio.run(record(options))
        return
    seeds = 10 if options.quick else options.seeds
    from tests.builders_advice import trial, trial_on_other_questions

    tables(seeds, trial, "the same questions drawn again")
    tables(seeds, trial_on_other_questions, "half of the questions calibrate, the others are asked")
    needed(seeds)
    shift(seeds)
    if options.latency:
        asyncio.run(latency(options.home, options.checkpoint, 10 if options.quick else 40, 8))


if __name__ == "__main__":
    main()
