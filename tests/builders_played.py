"""Hours of the simulated market with agents of planted skill, as groups, without a database."""

from __future__ import annotations

from itertools import islice

from data_bridge.models import AgentTrajectory, EnvironmentState, LLMCall, Step
from data_bridge.window_ids import end_of, start_of, windows_from
from trainer.types import Group
from trainer.world.agents import scripted_cast
from trainer.world.market import Market, outcomes_of
from trainer.world.player import AgentHour, PlayedHour, Player
from trainer.world.record import action_of


async def played_groups(hours: int, agents: int, seed: int, luck: float) -> tuple[list[Group], dict[str, float]]:
    """One group for each of the first ``hours`` hours whose news points somewhere, and the skill of each agent."""
    market = Market(seed=seed, luck=luck, stage="one", decisions=1)
    cast = scripted_cast(agents, seed)
    upcoming = windows_from("2026-03-02T00:00", 24 + 4 * hours)
    pointed = list(islice((window for window in upcoming if market.hour(window).news[0].direction), hours))
    groups = [group_of(hour) async for hour in Player(market, cast).play(pointed)]
    return groups, {agent.agent_id: agent.skill or 0.0 for agent in cast}


def group_of(played: PlayedHour) -> Group:
    hour, closing = played.hour, played.tape.closing
    members = tuple(_trajectory(life, played) for life in played.agents)
    return Group(f"{hour.window_id}/1", hour.window_id, members, outcomes_of(hour, closing, closing))


def _trajectory(life: AgentHour, played: PlayedHour) -> AgentTrajectory:
    window_id = played.hour.window_id
    name = f"{window_id}-{life.agent.index}"
    steps = [
        Step(
            step_number=number,
            state=EnvironmentState(balance=step.book.balance, lifetime_pnl=step.book.lifetime_pnl + step.gain),
            llm_calls=[LLMCall(model=step.answer.model, messages=list(step.messages), response=step.answer.text)],
            action=action_of(step.decision, step.error, step.price, step.book.stake, played.hour),
        )
        for number, step in enumerate(life.steps)
    ]
    return AgentTrajectory(
        trajectory_id=name,
        agent_id=life.agent.agent_id,
        window_id=window_id,
        window_hours=1,
        start_time=start_of(window_id),
        end_time=end_of(window_id, 1),
        steps=steps,
        content_hash=name,
        size_bytes=0,
        final_balance=life.after.balance,
        lifetime_pnl=life.after.lifetime_pnl,
    )
