"""What a judge is examined on: hours of the simulated market, whose agents' skill is known, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from data_bridge.models import AgentTrajectory, EnvironmentState, LLMCall, Step
from data_bridge.window_ids import end_of, start_of, windows_from
from trainer.types import Group
from trainer.world.agents import scripted_cast
from trainer.world.market import Market, outcomes_of
from trainer.world.player import AgentHour, PlayedHour, Player
from trainer.world.record import action_of

FIRST_WINDOW = "2026-03-02T00:00"
LUCK = 0.3
"""Enough noise that some sound decisions lose money: this exposes a judge that looks only at profit."""


@dataclass(frozen=True, slots=True)
class Material:
    """Groups to show the judge, and facts about their agents that the judge does not see."""

    name: str
    """``simulated`` or ``windows``."""
    groups: tuple[Group, ...]
    skill: dict[str, float]

    @property
    def where(self) -> str:
        """The suffix of its line names."""
        return "" if self.name == "simulated" else " (own windows)"


async def simulated(groups: int, agents: int, seed: int, luck: float = LUCK) -> Material:
    """Hours in which scripted agents of various skill decide on the same news, and one decision is better."""
    market = Market(seed=seed, luck=luck, stage="one", decisions=1)
    cast = scripted_cast(agents, seed)
    hours = (window for window in windows_from(FIRST_WINDOW, 24 + 4 * groups) if market.hour(window).news[0].direction)
    windows = list(islice(hours, groups))
    played = [_group(hour) async for hour in Player(market, cast).play(windows)]
    return Material("simulated", tuple(played), {agent.agent_id: agent.skill or 0.0 for agent in cast})


def _group(played: PlayedHour) -> Group:
    hour, closing = played.hour, played.tape.closing
    members = tuple(_trajectory(life, played) for life in played.agents)
    return Group(f"{hour.window_id}/1", hour.window_id, members, outcomes_of(hour, closing, closing))


def _trajectory(life: AgentHour, played: PlayedHour) -> AgentTrajectory:
    """The agent's hour as the reader would return it, without the database."""
    window_id = played.hour.window_id
    name = f"{window_id}-{life.agent.index}"
    return AgentTrajectory(
        trajectory_id=name,
        agent_id=life.agent.agent_id,
        window_id=window_id,
        window_hours=1,
        start_time=start_of(window_id),
        end_time=end_of(window_id, 1),
        steps=_steps(life, played),
        content_hash=name,
        size_bytes=0,
        final_balance=life.after.balance,
        lifetime_pnl=life.after.lifetime_pnl,
    )


def _steps(life: AgentHour, played: PlayedHour) -> list[Step]:
    return [
        Step(
            step_number=number,
            state=EnvironmentState(balance=step.book.balance, lifetime_pnl=step.book.lifetime_pnl + step.gain),
            llm_calls=[LLMCall(model=step.answer.model, messages=list(step.messages), response=step.answer.text)],
            action=action_of(step.decision, step.error, step.price, step.book.stake, played.hour),
        )
        for number, step in enumerate(life.steps)
    ]
