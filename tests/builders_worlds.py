"""Logs of other worlds than markets, recorded with the recorder: a support desk and a quest log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from data_bridge.database import Database
from data_bridge.facts import record_facts
from data_bridge.models import Action, ChatMessage, Fact, LLMCall
from data_bridge.recorder import Recorder
from data_bridge.window_ids import end_of, start_of

Decide = Callable[[int, int], tuple[str, str, Action, dict[str, object]]]
"""Of a window's and an agent's number: what the agent saw and said, what it did, and its state."""

AGENTS = ("ada", "ben", "cleo", "dan")
RIGHT = ("REFUND", "ESCALATE", "ANSWER")


def desk(window: int, agent: int) -> tuple[str, str, Action, dict[str, object]]:
    """One ticket for everybody; the first two agents take the right step, the last one says nothing useful."""
    right = RIGHT[window % 3]
    said = right if agent < 2 else RIGHT[(window + 1) % 3] if agent == 2 else "hm, let me think about that"
    is_valid = agent < 3
    ticket = {"ticket": f"T-{window}"}
    kind, error = (said, None) if is_valid else ("ANSWER", "not an action")
    action = Action(kind, parameters=ticket, success=is_valid, error=error)
    state: dict[str, object] = {"tier": "one", "openTickets": 3 + agent, "waitingMinutes": 5}
    return f"Ticket T-{window}: the customer asks for {right.lower()}.", said, action, state


def quest(window: int, agent: int) -> tuple[str, str, Action, dict[str, object]]:
    said = ("GO", "WAIT", "TRADE", "GO")[agent]
    action = Action(said, parameters={"quest": f"Q-{window}"}, success=True, result={"note": "as told"})
    state: dict[str, object] = {"place": "harbour", "energy": 40 + 10 * agent, "custom": {"coins": 7}}
    return f"Quest Q-{window}: bring the salt to the mill.", said, action, state


def desk_facts(window: int) -> list[Fact]:
    ticket = f"T-{window}"
    right = [Fact(ticket, "right_action", text=RIGHT[window % 3])]
    done = [Fact(f"{agent}/{ticket}", "resolved", 0.0, float(place < 2)) for place, agent in enumerate(AGENTS)]
    return [*right, *done, Fact("weather", "rain", after=1.0, visible=True)]


def quest_facts(window: int) -> list[Fact]:
    return [Fact(f"{agent}/Q-{window}", "quest_done", 0.0, float(place != 1)) for place, agent in enumerate(AGENTS)]


async def record_log(
    database: Database,
    spool: Path,
    windows: Sequence[str],
    decide: Decide,
    facts: Callable[[int], list[Fact]],
    now: datetime,
) -> None:
    """Four agents in every window, one decision each, and what is known afterwards."""
    async with Recorder(database, spool) as recorder:
        for number, window_id in enumerate(windows):
            start = start_of(window_id) + timedelta(minutes=5)
            for place, agent in enumerate(AGENTS):
                seen, said, action, state = decide(number, place)
                trajectory = recorder.start_trajectory(
                    agent, started_at=start, trajectory_id=f"{window_id}-{agent}", row_id=f"row-{window_id}-{agent}"
                )
                step = trajectory.step(state, at=start)
                messages = [ChatMessage("system", "Reply with one action."), ChatMessage("user", seen)]
                step.log_llm_call(
                    LLMCall(model="hindsight@step0", messages=messages, response=said, max_tokens=6, temperature=1.0)
                )
                step.complete_step(action)
                await trajectory.end_trajectory(at=end_of(window_id, 1) - timedelta(minutes=1))
        await recorder.flush(timedelta(seconds=30))
    for number, window_id in enumerate(windows):
        await record_facts(database, window_id, facts(number), now=now)
