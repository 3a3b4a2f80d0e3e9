"""Stores a played hour as the game does: trajectories through the recorder, then the outcomes.

Ids and times come from the simulated clock, so that the same world always gives the same rows.
Nothing of the planted truth is written here.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from data_bridge.database import Database
from data_bridge.models import Action, LLMCall
from data_bridge.outcomes import record_outcomes
from data_bridge.recorder import Recorder
from data_bridge.window_ids import GRACE, end_of
from trainer.world.actions import BUY, HOLD, MAX_REPLY_TOKENS, NO, SELL, YES, ActionError, Decision
from trainer.world.agents import Agent
from trainer.world.chance import between, snowflake
from trainer.world.market import Hour, moment, outcomes_of
from trainer.world.player import AgentHour, PlayedHour, PlayedStep

INVALID = "INVALID"
"""The action type of a reply that is not an action."""

_TYPES = {BUY: "BUY", SELL: "SELL", YES: "BUY_YES", NO: "BUY_NO", HOLD: "HOLD"}


async def record_hour(recorder: Recorder, database: Database, played: PlayedHour, seed: int) -> None:
    """Every agent's trajectory, then the ground truth of the window that has closed."""
    await asyncio.gather(*(_record_agent(recorder, played.hour, life, seed) for life in played.agents))
    closing = played.tape.closing
    window_id = played.hour.window_id
    await record_outcomes(
        database, window_id, outcomes_of(played.hour, closing, closing), now=end_of(window_id, 1) + GRACE / 2
    )


async def _record_agent(recorder: Recorder, hour: Hour, life: AgentHour, seed: int) -> None:
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
        recording = trajectory.step(_state(life, step), at=at)
        recording.log_provider_access("MARKET", _market(step), "prices and news")
        recording.log_llm_call(_call(step))
        recording.complete_step(action_of(step.decision, step.error, step.price, step.book.stake, hour))
    await trajectory.end_trajectory(
        final_balance=life.after.balance, final_pnl=life.after.lifetime_pnl, at=ended, recorded_at=ended
    )


def trajectory_id_of(hour: Hour, agent: Agent, seed: int) -> str:
    """Of the agent's trajectory in this hour."""
    key = (seed, hour.window_id, agent.index)
    return snowflake(_started(hour, key), agent.index, *key)


def _started(hour: Hour, key: tuple[object, ...]) -> datetime:
    return moment(hour.window_id, between(1.0, 2.0, *key, "start"))


def _state(life: AgentHour, step: PlayedStep) -> dict[str, Any]:
    book = step.book
    return {
        "agentBalance": round(book.balance + book.realised, 2),
        "agentPnL": round(book.lifetime_pnl + step.gain, 2),
        "openPositions": len(book.positions),
        "activeMarkets": len(step.seen.quotes) + len(step.seen.questions),
        "role": life.agent.role,
    }


def _market(step: PlayedStep) -> dict[str, Any]:
    prices: dict[str, float] = {quote.symbol: quote.price for quote in step.seen.quotes}
    prices |= {question.label: question.yes_price for question in step.seen.questions}
    return {"prices": prices, "news": list(step.seen.headlines)}


def _call(step: PlayedStep) -> LLMCall:
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
        action_type=_TYPES[step.decision.verb] if step.decision is not None else None,
        completion_tokens=len(answer.token_ids) or None,
        completion_token_ids=list(answer.token_ids) if has_tokens else None,
        completion_logprobs=list(answer.logprobs) if has_tokens else None,
        logprobs_temperature=1.0 if has_tokens else None,
        finish_reason=answer.finish_reason,
    )


def action_of(
    decision: Decision | None, error: ActionError | None, price: float | None, stake: float, hour: Hour
) -> Action:
    """The action in the game's terms. A failed one keeps what it tried, and why it failed."""
    if decision is None:
        return Action(action_type=INVALID, success=False, error=str(error))
    parameters: dict[str, Any] = {}
    if decision.verb in (YES, NO):
        known = {market.label: market for market in hour.predictions}
        market_id = known[decision.market].market_id if decision.market in known else decision.market
        parameters = {"marketId": market_id, "side": decision.verb}
    elif decision.market:
        parameters = {"ticker": decision.market.removeprefix("$"), "side": decision.verb}
    if decision.market:
        parameters |= {"percent": decision.percent, "amount": round(decision.percent / 100 * stake, 2)}
    return Action(
        action_type=_TYPES[decision.verb],
        parameters=parameters,
        success=error is None,
        result={"price": price} if price is not None else None,
        error=None if error is None else str(error),
    )
