"""Builders of test data: steps, trajectories and windows in memory, and the same as rows of the game's tables.

``make_*`` gives the frozen types that stages exchange; ``*_steps`` gives what one of the game's two writers puts
into ``stepsJson``; ``insert_*`` writes rows into a real database through a pool or a connection.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Literal

from data_bridge.models import (
    Action,
    AgentTrajectory,
    EnvironmentState,
    LLMCall,
    NewsEvent,
    PredictionOutcome,
    Step,
    StockOutcome,
    Window,
    WindowOutcomes,
)
from data_bridge.window_ids import start_of, window_of

Writer = Literal["recorder", "plugin"]

NOW = datetime(2026, 11, 2, 12, 30, tzinfo=UTC)
"""The moment at which the tests read; pass it on as ``--until`` or ``now``."""
WINDOW = "2026-11-02T10:00"
"""A closed window."""

_serial = count(1)


def hours_before(now: datetime = NOW, *, number: int) -> list[str]:
    """The newest ``number`` closed one-hour windows before ``now``, oldest first."""
    newest = now - timedelta(hours=2)
    return [window_of(newest - timedelta(hours=ago)) for ago in reversed(range(number))]


# In memory


def make_call(
    response: str = "BUY ACME 10", *, prompt: str = "ACME trades at 100. News: orders are up.", **fields: Any
) -> LLMCall:
    values: dict[str, Any] = {"model": "hindsight", "system_prompt": "You trade.", "temperature": 1.0, "max_tokens": 64}
    return LLMCall(**(values | {"user_prompt": prompt, "response": response} | fields))


def make_action(kind: str = "BUY", *, success: bool = True, **fields: Any) -> Action:
    values: dict[str, Any] = {"parameters": {"ticker": "ACME", "amount": 10}}
    return Action(**(values | {"action_type": kind, "success": success} | fields))


def trade_worth(pnl: float, parts: int = 1) -> dict[str, Any]:
    """Parameters of one of ``parts`` orders that make ``pnl`` of a balance of 1000 when ACME rises by ten per cent."""
    amount = abs(pnl) * 10 / parts
    return {"ticker": "ACME", "side": "BUY" if pnl >= 0 else "SELL", "amount": amount, "percent": amount / 10}


def make_step(
    number: int = 0,
    *,
    pnl: float | None = 0.0,
    balance: float | None = 1000.0,
    calls: Sequence[LLMCall] | None = None,
    action: Action | None = None,
    no_action: bool = False,
    role: str | None = None,
) -> Step:
    return Step(
        step_number=number,
        timestamp=1_793_000_000_000.0 + 60_000 * number,
        state=EnvironmentState(balance=balance, lifetime_pnl=pnl, open_positions=0, role=role),
        llm_calls=[make_call()] if calls is None else list(calls),
        action=None if no_action else action or make_action(),
        reward=0.0,
    )


def make_trajectory(
    agent_id: str = "agent-1",
    *,
    window_id: str = WINDOW,
    trajectory_id: str | None = None,
    steps: Sequence[Step] | None = None,
    pnl: float = 10.0,
    **fields: Any,
) -> AgentTrajectory:
    """A usable trajectory of two orders whose P&L in the window is ``pnl`` (its lifetime P&L started at 500)."""
    start = start_of(window_id)
    trajectory_id = trajectory_id or f"trajectory-{next(_serial)}"
    order = make_action(parameters=trade_worth(pnl, parts=2))
    orders = [make_step(0, pnl=500.0, action=order), make_step(1, pnl=500.0 + pnl, action=order)]
    own = orders if steps is None else list(steps)
    values: dict[str, Any] = {
        "window_hours": 1,
        "start_time": start,
        "end_time": start + timedelta(minutes=50),
        "content_hash": f"hash-of-{trajectory_id}",
        "size_bytes": 1000,
        "agent_name": agent_id.title(),
        "final_balance": 1000.0 + pnl,
    }
    return AgentTrajectory(
        trajectory_id=trajectory_id, agent_id=agent_id, window_id=window_id, steps=own, **(values | fields)
    )


def make_outcomes() -> WindowOutcomes:
    """One stock that rose by ten per cent on one piece of news, and one resolved prediction market."""
    news = (NewsEvent(headline="ACME wins a large order", sentiment="positive"),)
    return WindowOutcomes(
        stocks=(StockOutcome("ACME", start_price=100.0, end_price=110.0, change_percent=10.0, news=news),),
        predictions=(
            PredictionOutcome("market-1", question="Will ACME close above 105?", outcome="YES", final_probability=1.0),
        ),
    )


def make_window(
    window_id: str = WINDOW,
    *,
    agents: int = 3,
    trajectories: Iterable[AgentTrajectory] | None = None,
    outcomes: WindowOutcomes | None = None,
    hours: int = 1,
) -> Window:
    """A window of ``agents`` usable trajectories whose P&L is 0, 10, 20, ... in the agents' order."""
    if trajectories is None:
        trajectories = [
            make_trajectory(f"agent-{number}", window_id=window_id, pnl=10.0 * (number - 1), window_hours=hours)
            for number in range(1, agents + 1)
        ]
    return Window(window_id, hours, tuple(trajectories), make_outcomes() if outcomes is None else outcomes)


# As the game's two writers store it


def recorder_steps(
    number: int = 2, *, pnl: float = 10.0, prompt: str = "ACME trades at 100.", response: str = "BUY ACME 10"
) -> list[dict[str, Any]]:
    """``stepsJson`` of the recorder. Lifetime P&L goes from 500 to 500 + ``pnl``."""
    return [
        {
            "stepNumber": step,
            "timestamp": 1_793_000_000_000 + 60_000 * step,
            "environmentState": {
                "agentBalance": 1000,
                "agentPnL": 500 + pnl * step / max(number - 1, 1),
                "openPositions": step,
                "activeMarkets": 2,
                "mood": "calm",
            },
            "providerAccesses": [{"providerName": "MARKET", "data": {"ACME": 100}, "purpose": "prices"}],
            "llmCalls": [
                {
                    "model": "hindsight",
                    "systemPrompt": "You trade.",
                    "userPrompt": prompt,
                    "response": response,
                    "temperature": 0.7,
                    "maxTokens": 64,
                    "latencyMs": 312.5,
                    "purpose": "action",
                    "actionType": "BUY",
                }
            ],
            "action": {
                "actionType": "BUY",
                "parameters": trade_worth(pnl, parts=number),
                "success": True,
                "result": {"shares": 10},
            },
            "reward": 0,
        }
        for step in range(number)
    ]


def plugin_steps(
    number: int = 2, *, pnl: float = 10.0, prompt: str = "ACME trades at 100.", response: str = "BUY ACME 10"
) -> list[dict[str, Any]]:
    """``stepsJson`` of the plugin logger. Lifetime P&L goes from 500 to 500 + ``pnl``."""
    steps = recorder_steps(number, pnl=pnl, prompt=prompt, response=response)
    for step in steps:
        moment = step["timestamp"]
        step |= {"stepId": str(uuid.uuid4()), "observation": {"prices": {"ACME": 100}}, "done": False}
        step["environmentState"] |= {"timestamp": moment, "agentPoints": 3, "portfolioValue": 1000}
        step["providerAccesses"][0] |= {"providerId": str(uuid.uuid4()), "timestamp": moment, "query": {"limit": 5}}
        step["llmCalls"][0] |= {
            "callId": str(uuid.uuid4()),
            "timestamp": moment,
            "messages": [{"role": "system", "content": "You trade."}, {"role": "user", "content": prompt}],
            "topP": 1,
            "promptTokens": 40,
            "completionTokens": 6,
        }
        step["action"] |= {"attemptId": str(uuid.uuid4()), "timestamp": moment, "actionName": "BUY"}
    return steps


def naive(moment: datetime) -> datetime:
    """As ``TIMESTAMP(3)`` columns want it."""
    return moment.astimezone(UTC).replace(tzinfo=None)


async def insert_agents(pool: Any, agents: Iterable[str]) -> None:
    """Rows of ``"User"`` for agents that are not there yet."""
    ids = sorted(set(agents))
    names = [agent_id.title() for agent_id in ids]
    await pool.execute(
        'INSERT INTO "User" (id, username, "displayName") SELECT id, id, name '
        "FROM unnest($1::text[], $2::text[]) AS t(id, name) ON CONFLICT (id) DO NOTHING",
        ids,
        names,
    )


def trajectory_row(
    agent_id: str = "agent-1",
    *,
    window_id: str | None = WINDOW,
    writer: Writer = "recorder",
    steps: Any = None,
    steps_json: str | None = None,
    metadata: Any = None,
    start_time: datetime | None = None,
    pnl: float = 10.0,
    **columns: Any,
) -> dict[str, Any]:
    """One row of ``trajectories`` by column name. ``columns`` overrides any of them; ``steps_json`` is stored as is."""
    start = start_time or start_of(window_id or WINDOW) + timedelta(minutes=5)
    end = start + timedelta(minutes=45)
    own_steps = (recorder_steps if writer == "recorder" else plugin_steps)(pnl=pnl)
    steps = own_steps if steps is None else steps
    truth = {"trueProbabilities": {"market-1": 0.9}, "futureOutcomes": {"ACME": "up"}}
    own_metadata = {"isTrainingData": True, "gameKnowledge": truth} if writer == "recorder" else truth
    trajectory_id = str(10**18 + next(_serial)) if writer == "recorder" else str(uuid.uuid4())
    row = {
        "id": trajectory_id,
        "trajectoryId": trajectory_id,
        "agentId": agent_id,
        "startTime": naive(start),
        "endTime": naive(end),
        "durationMs": 45 * 60_000,
        "windowId": window_id,
        "windowHours": 1,
        "scenarioId": window_id,
        "stepsJson": json.dumps(steps) if steps_json is None else steps_json,
        "rewardComponentsJson": "{}",
        "metricsJson": json.dumps({"episodeLength": 2, "finalStatus": "completed", "errorCount": 0}),
        "metadataJson": json.dumps(own_metadata if metadata is None else metadata),
        "totalReward": 0.0,
        "episodeLength": len(steps) if isinstance(steps, list) else 0,
        "finalStatus": "completed",
        "finalBalance": 1000.0 + pnl if writer == "recorder" else None,
        "finalPnL": 500.0 + pnl if writer == "recorder" else None,
        "isTrainingData": True,
        "isEvaluation": False,
        "usedInTraining": False,
        "createdAt": naive(end),
        "updatedAt": naive(end),
    }
    if "trajectoryId" in columns:
        columns.setdefault("id", columns["trajectoryId"])
    return row | columns


async def insert_rows(pool: Any, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of the game's ``table``; all of them have the same columns."""
    if not rows:
        return
    names = list(rows[0])
    assert all(row.keys() == rows[0].keys() for row in rows), "rows of one call must have the same columns"
    columns = ", ".join(f'"{name}"' for name in names)
    places = ", ".join(f"${place}" for place in range(1, len(names) + 1))
    await pool.executemany(
        f'INSERT INTO "{table}" ({columns}) VALUES ({places})', [tuple(row[name] for name in names) for row in rows]
    )


async def insert_trajectory(pool: Any, agent_id: str = "agent-1", **options: Any) -> str:
    """One row of ``trajectories`` (options as for ``trajectory_row``), and its agent. Returns the trajectory id."""
    row = trajectory_row(agent_id, **options)
    await insert_agents(pool, [agent_id])
    await insert_rows(pool, "trajectories", [row])
    return str(row["trajectoryId"])


async def insert_outcomes(
    pool: Any,
    window_id: str = WINDOW,
    *,
    stocks: Sequence[dict[str, Any]] | None = None,
    predictions: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Rows of ``market_outcomes``: by default those of ``make_outcomes``. Each dict overrides columns of one row."""
    stock = {
        "stockTicker": "ACME",
        "startPrice": 100,
        "endPrice": 110,
        "changePercent": 10,
        "sentiment": "positive",
        "newsEvents": json.dumps([{"headline": "ACME wins a large order", "sentiment": "positive"}]),
    }
    prediction = {
        "predictionMarketId": "market-1",
        "question": "Will ACME close above 105?",
        "outcome": "YES",
        "finalProbability": 1,
        "volume": 5000,
    }
    common = {"windowId": window_id, "createdAt": naive(start_of(window_id) + timedelta(hours=1))}
    for base, rows in ((stock, stocks), (prediction, predictions)):
        for overrides in [{}] if rows is None else rows:
            await insert_rows(pool, "market_outcomes", [{"id": str(uuid.uuid4())} | common | base | overrides])


async def insert_window(
    pool: Any,
    window_id: str = WINDOW,
    *,
    agents: int = 3,
    writer: Writer = "recorder",
    outcomes: bool = True,
    **options: Any,
) -> list[str]:
    """A window of ``agents`` usable rows (P&L 0, 10, 20, ...) with its outcomes. Returns the trajectory ids."""
    rows = [
        trajectory_row(
            f"agent-{number}", window_id=window_id, writer=writer, **({"pnl": 10.0 * (number - 1)} | options)
        )
        for number in range(1, agents + 1)
    ]
    await insert_agents(pool, [row["agentId"] for row in rows])
    await insert_rows(pool, "trajectories", rows)
    if outcomes:
        await insert_outcomes(pool, window_id)
    return [str(row["trajectoryId"]) for row in rows]
