"""Stores a played hour as the game does: trajectories through the recorder, then what happened.

Ids and times come from the simulated clock, so that the same world always gives the same rows.
Nothing of the planted truth is written here.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from data_bridge.database import Database
from data_bridge.models import LLMCall
from data_bridge.recorder import Recorder
from trainer.world.actions import MAX_REPLY_TOKENS
from trainer.world.agents import Agent
from trainer.world.chance import between, snowflake
from trainer.world.market import moment
from trainer.world.market_rules import INVALID as INVALID
from trainer.world.market_rules import action_of as action_of
from trainer.world.player import AgentHour, PlayedHour, PlayedStep
from trainer.world.rules import WorldRules
from trainer.world.worlds import MARKET


async def record_hour(
    recorder: Recorder, database: Database, played: PlayedHour, seed: int, rules: WorldRules = MARKET
) -> None:
    """Every agent's trajectory, then the ground truth of the window that has closed."""
    await asyncio.gather(*(_record_agent(recorder, played.hour, life, seed, rules) for life in played.agents))
    await rules.record_truth(database, played)


async def _record_agent(recorder: Recorder, hour: Any, life: AgentHour, seed: int, rules: WorldRules) -> None:
    agent = life.agent
    key = (seed, hour.window_id, agent.index)
    started = _started(hour, key)
    ended = moment(hour.window_id, between(56.0, 59.0, *key, "end"))
    trajectory = recorder.start_trajectory(
        agent.agent_id,
        started_at=started,
        agent_name=agent.name,
        trajectory_id=trajectory_id_of(hour, agent, seed),
        row_id=snowflake(ended, agent.index, *key),
    )
    for number, step in enumerate(life.steps):
        at = moment(hour.window_id, hour.minutes[number]) + timedelta(milliseconds=agent.index * 37 % 20_000)
        recording = trajectory.step(rules.state(agent.role, step.seen, step.book, step.gain), at=at)
        recording.log_provider_access(*rules.shown(step.seen))
        recording.log_llm_call(_call(step, rules))
        recording.complete_step(rules.action(step.decision, step.error, step.price, step.book, hour))
    balance, profit = rules.ending(life.after)
    await trajectory.end_trajectory(final_balance=balance, final_pnl=profit, at=ended, recorded_at=ended)


def trajectory_id_of(hour: Any, agent: Agent, seed: int) -> str:
    """Of the agent's trajectory in this hour."""
    key = (seed, hour.window_id, agent.index)
    return snowflake(_started(hour, key), agent.index, *key)


def _started(hour: Any, key: tuple[object, ...]) -> datetime:
    return moment(hour.window_id, between(1.0, 2.0, *key, "start"))


def _call(step: PlayedStep, rules: WorldRules) -> LLMCall:
    answer = step.answer
    has_tokens = bool(answer.token_ids) and len(answer.token_ids) == len(answer.logprobs)
    return LLMCall(
        model=answer.model,
        messages=list(step.messages),
        response=answer.text,
        purpose="action",
        temperature=answer.temperature,
        max_tokens=MAX_REPLY_TOKENS,
        latency_ms=answer.latency_ms,
        action_type=rules.action_type(step.decision) if step.decision is not None else None,
        completion_tokens=len(answer.token_ids) or None,
        completion_token_ids=list(answer.token_ids) if has_tokens else None,
        completion_logprobs=list(answer.logprobs) if has_tokens else None,
        logprobs_temperature=1.0 if has_tokens else None,
        finish_reason=answer.finish_reason,
    )
