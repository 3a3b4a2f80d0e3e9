"""The agent's loop: 128 agents at once, each part called once a decision, everything recorded as it was sent."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from data_bridge.agent_loop import AgentLoop, AgentPrompt, Seen
from data_bridge.database import Database
from data_bridge.lesson_client import Decider, ShownLesson
from data_bridge.lesson_prompts import lessons_in
from data_bridge.models import Action, ChatMessage, LLMCall, PredictionOutcome, WindowOutcomes
from data_bridge.recorder import Recorder
from data_bridge.window_ids import GRACE, end_of, start_of

AGENTS = 128
EXPLORED = 13
"""Every tenth."""
WINDOW = "2026-03-02T10:00"
AT = start_of(WINDOW) + timedelta(minutes=5)


class Parts:
    """All parts in one, which counts who is called how often, and how many decide at the same time."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.waiting = 0
        self.everybody_waits = asyncio.Event()

    async def prompt(self, agent_id: str, seen: Seen) -> AgentPrompt:
        self.calls["prompt"] += 1
        system = ChatMessage(role="system", content=f"You are {agent_id}.")
        return AgentPrompt([system, ChatMessage(role="user", content=seen.text)], "v2")

    async def look_up(self, context: str, decider: Decider) -> Sequence[ShownLesson]:
        self.calls["lessons"] += 1
        assert decider.as_of == AT
        return [ShownLesson("one", f"For {decider.agent_id}: buy")]

    async def act(self, agent_id: str, messages: Sequence[ChatMessage]) -> LLMCall:
        self.calls["model"] += 1
        self.waiting += 1
        if self.waiting == AGENTS - EXPLORED:
            self.everybody_waits.set()
        await self.everybody_waits.wait()
        assert lessons_in(messages) == [f"For {agent_id}: buy"]
        return LLMCall(model="hindsight@step1", response="BUY", completion_token_ids=[1], completion_logprobs=[-0.1])

    def explore(self, agent_id: str, seen: Seen) -> str | None:
        self.calls["explore"] += 1
        return "HOLD" if int(agent_id[6:]) % 10 == 0 else None

    async def guard(self, agent_id: str, seen: Seen, reply: str) -> Action:
        self.calls["guard"] += 1
        if reply != "BUY":
            return Action(action_type="INVALID", success=False, error="not_offered")
        return Action(action_type="BUY", parameters={"ticker": "ACME"}, success=True)


async def test_128_agents_decide_at_once_and_every_part_works_once_a_decision(
    database: Database, tmp_path: Path
) -> None:
    parts = Parts()
    async with Recorder(database, tmp_path) as recorder:
        loop = AgentLoop(recorder, prompt=parts, act=parts, guard=parts, lessons=parts, explore=parts)

        async def hour(number: int) -> None:
            async with loop.window(f"agent-{number}", started_at=start_of(WINDOW)) as own:
                decided = await own.decide(Seen("ACME rises.", {"agentBalance": 1000, "agentPnL": 0}, at=AT))
                assert (decided.explored, decided.prompt_version) == (number % 10 == 0, "v2")
                assert decided.action.success != decided.explored
                await own.end(final_balance=1001, final_pnl=1, at=end_of(WINDOW, 1))

        async with asyncio.timeout(120):  # all wait for each other in the model: it hangs unless they run at once
            await asyncio.gather(*map(hour, range(AGENTS)))
        await recorder.flush()
        truth = WindowOutcomes(predictions=(PredictionOutcome("m", "Did it rise?", "YES", 0.9),))
        await loop.outcome(database, WINDOW, truth, now=end_of(WINDOW, 1) + GRACE)

    asked = AGENTS - EXPLORED
    assert parts.calls == Counter(prompt=AGENTS, lessons=AGENTS, explore=AGENTS, guard=AGENTS, model=asked)
    assert (recorder.delivered, recorder.rejected) == (AGENTS, 0)
    rows = await database.pool.fetch('SELECT "agentId", "stepsJson", "windowId" FROM trajectories')
    assert {row["agentId"] for row in rows} == {f"agent-{number}" for number in range(AGENTS)}
    for row in rows:
        [step] = json.loads(row["stepsJson"])
        [call] = step["llmCalls"]
        assert f"- For {row['agentId']}: buy" in call["messages"][0]["content"]
        assert (call["model"] == "explorer") == ("completionTokenIds" not in call)
        assert step["providerAccesses"][0]["data"] == {"version": "v2"}


async def test_a_part_that_fails_is_the_callers_error_and_leaves_a_step_without_an_action(
    database: Database, tmp_path: Path
) -> None:
    class Away(Parts):
        async def act(self, agent_id: str, messages: Sequence[ChatMessage]) -> LLMCall:
            raise ConnectionError("no model")

    parts = Away()
    async with Recorder(database, tmp_path) as recorder:
        loop = AgentLoop(recorder, prompt=parts, act=parts, guard=parts)
        with pytest.raises(ConnectionError, match="no model"):
            async with loop.window("agent-1", started_at=start_of(WINDOW)) as own:
                await own.decide(Seen("ACME rises.", {}, at=AT))
    [row] = await database.pool.fetch('SELECT "stepsJson", "finalStatus" FROM trajectories')
    assert row["finalStatus"] == "completed_with_errors"
    assert json.loads(row["stepsJson"])[0]["action"]["error"] == "ConnectionError: no model"
