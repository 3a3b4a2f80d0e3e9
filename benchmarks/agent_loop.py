"""What the agent's loop costs beside the model call and the retrieval: 128 agents at once.

    python benchmarks/agent_loop.py [--quick] [--agents 128] [--decisions 4] [--model embedded|none] [--json]

Every agent decides through `AgentLoop`: prompt, lessons, model, guard, record. Printed are, for a decision: the loop's
own time (everything but the model call and the retrieval; processor time of this process while nothing else runs in it,
and wall time with all agents at once), the retrieval apart, and the model call. The limit is 5 % of a decision that
takes 200 ms. Exits 1 if the loop's own processor time is above it, or if a trajectory is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.agent_loop import AgentLoop, AgentPrompt, Seen
from data_bridge.database import Database, open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.lesson_client import Decider, ShownLesson
from data_bridge.models import Action, ChatMessage, LLMCall
from data_bridge.recorder import Recorder
from trainer.lesson import LessonKind, NewLesson, Recall, Scope, Trust
from trainer.types import ChatModel
from trainer.world.actions import MAX_REPLY_TOKENS, ActionError, parse
from trainer.world.exchange import Exchange
from trainer.world.market import Market
from trainer.world.observation import messages_for, observe

DECISION_MS, SHARE = 200.0, 0.05
GAME, KNOWN = Scope("benchmark"), datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Spent:
    """Seconds of each call of one part."""

    seconds: list[float] = field(default_factory=list)


class MarketPrompts:
    def __init__(self, prompts: Sequence[list[ChatMessage]]) -> None:
        self._prompts = prompts

    async def prompt(self, agent_id: str, seen: Seen) -> AgentPrompt:
        return AgentPrompt(self._prompts[seen.data], "benchmark-1")


@dataclass(frozen=True, slots=True)
class Model:
    """The embedded model, or an answer at once."""

    model: ChatModel | None
    spent: Spent

    async def act(self, agent_id: str, messages: Sequence[ChatMessage]) -> LLMCall:
        started = time.perf_counter()
        if self.model is None:
            call = LLMCall(model="none", response="BUY $ACME 20%", temperature=1.0, max_tokens=MAX_REPLY_TOKENS)
        else:
            [said] = await self.model.chat(messages, temperature=1.0, max_tokens=MAX_REPLY_TOKENS)
            call = LLMCall(
                model=said.model,
                response=said.text,
                temperature=1.0,
                max_tokens=MAX_REPLY_TOKENS,
                completion_token_ids=list(said.token_ids),
                completion_logprobs=list(said.logprobs),
                logprobs_temperature=1.0,
            )
        self.spent.seconds.append(time.perf_counter() - started)
        return call


@dataclass(frozen=True, slots=True)
class Found:
    recall: Recall
    spent: Spent

    async def look_up(self, context: str, decider: Decider) -> Sequence[ShownLesson]:
        started = time.perf_counter()
        found = await self.recall.retrieve(context, GAME, as_of=decider.as_of, k=2)
        self.spent.seconds.append(time.perf_counter() - started)
        return [ShownLesson(one.lesson.lesson_id, one.lesson.shown) for one in found]


class Remembered:
    """The same lessons at once: to see the loop alone."""

    _shown = tuple(ShownLesson(str(number), f"Lesson {number}: " + "sell on bad news " * 8) for number in range(2))

    async def look_up(self, context: str, decider: Decider) -> Sequence[ShownLesson]:
        return self._shown


class Guard:
    async def guard(self, agent_id: str, seen: Seen, reply: str) -> Action:
        parsed = parse(reply)
        if isinstance(parsed, ActionError):
            return Action(action_type="INVALID", success=False, error=parsed.reason)
        return Action(action_type=parsed.verb, parameters={"ticker": parsed.market}, success=True)


async def decide(loop: AgentLoop, agents: int, decisions: int, times: list[float]) -> None:
    """All agents at once, each with as many decisions in one window."""

    async def one(agent: int) -> None:
        async with loop.window(f"agent-{agent}") as hour:
            for number in range(decisions):
                seen = Seen("", {"agentBalance": 1000, "agentPnL": number}, data=(agent + number) % 24)
                started = time.perf_counter()
                await hour.decide(seen)
                times.append(time.perf_counter() - started)

    await asyncio.gather(*map(one, range(agents)))


def prompts() -> list[list[ChatMessage]]:
    market = Market(7)
    start = datetime(2026, 3, 2, tzinfo=UTC)
    hours = [market.hour(f"{start + timedelta(hours=hour):%Y-%m-%dT%H:00}") for hour in range(24)]
    return [messages_for(observe(hour, 0, Exchange(hour).quotes(0)), "one") for hour in hours]


async def alone(recorder: Recorder, agents: int, decisions: int) -> float:
    """Milliseconds of processor time that the loop itself takes for a decision, recording to disk included."""
    parts: dict[str, Any] = {"prompt": MarketPrompts(prompts()), "guard": Guard(), "lessons": Remembered()}
    loop = AgentLoop(recorder, act=Model(None, Spent()), **parts)
    times: list[float] = []
    started = time.process_time()
    await decide(loop, agents, decisions, times)
    return 1000 * (time.process_time() - started) / (agents * decisions)


async def together(
    recorder: Recorder, model: ChatModel, recall: Recall, agents: int, decisions: int
) -> dict[str, float]:
    """Milliseconds of a decision with the embedded model and real retrieval, by part."""
    asked, found, times = Spent(), Spent(), list[float]()
    loop = AgentLoop(
        recorder, prompt=MarketPrompts(prompts()), act=Model(model, asked), guard=Guard(), lessons=Found(recall, found)
    )
    await decide(loop, agents, decisions, times)
    own = (sum(times) - sum(asked.seconds) - sum(found.seconds)) / len(times)
    return {
        "decision": 1000 * fmean(times),
        "model": 1000 * fmean(asked.seconds),
        "retrieval": 1000 * fmean(found.seconds),
        "retrieval p95": 1000 * quantiles(found.seconds, n=20)[-1],
        "loop": 1000 * own,
    }


async def store(database: Database, number: int) -> Any:
    from trainer.inference.embedding import EmbeddedModel
    from trainer.lessons.retrieval import open_lessons_of

    lessons = await open_lessons_of(database, EmbeddedModel())
    hours = prompts()
    made = [
        NewLesson(
            LessonKind.EPISODIC,
            GAME,
            f"Hour {one}",
            hours[one % 24][-1].text() + f" number {one}",
            KNOWN,
            Trust.VERDICT,
        )
        for one in range(number)
    ]
    await lessons.store(made)
    return lessons


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="hindsight-bench-"))
    server = EmbeddedServer(folder / "postgres")
    server.start()
    try:
        async with open_database(server.url(), folder, migrate=True) as database:
            async with Recorder(database, folder / "warm") as recorder:
                await alone(recorder, 16, 1)
            async with Recorder(database, folder / "alone") as recorder:
                found: dict[str, Any] = {"loop alone, processor": await alone(recorder, options.agents, 8)}
            delivered = recorder.delivered
            if options.model == "embedded":
                from trainer.inference.base_model import EMBEDDED, model_directory
                from trainer.inference.chat_models import Engine

                lessons = await store(database, options.lessons)
                engine = Engine(model_directory(EMBEDDED, options.home), threads=options.threads)
                try:
                    async with Recorder(database, folder / "together") as recorder:
                        model = engine.model(None, "hindsight@step0")
                        found |= await together(recorder, model, lessons, options.agents, options.decisions)
                    delivered += recorder.delivered
                finally:
                    await engine.close()
                    await lessons.embedder.close()
            wanted = options.agents * (2 if options.model == "embedded" else 1)
            return found | {"trajectories": delivered, "missing": wanted - delivered}
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one decision of each agent, 100 lessons")
    parser.add_argument("--agents", type=int, default=128)
    parser.add_argument("--decisions", type=int, default=4)
    parser.add_argument("--lessons", type=int, default=1_000, help="in the store")
    parser.add_argument("--model", choices=["embedded", "none"], default="embedded")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.decisions, options.lessons = 1, 100
    found = asyncio.run(measure(options))
    share = found["loop alone, processor"] / DECISION_MS
    if options.json:
        print(json.dumps(found | {"share": share}))
    else:
        print(f"{options.agents} agents at once, milliseconds of a decision:")
        for name, value in found.items():
            print(f"  {name:24s} {value:10.2f}" if isinstance(value, float) else f"  {name:24s} {value:10d}")
        print(f"The loop takes {share:.2%} of a decision of {DECISION_MS:.0f} ms (limit {SHARE:.0%}).")
    return 0 if share < SHARE and found["missing"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
