"""Hours of a simulated world with agents of planted skill, as groups, without a database."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from statistics import fmean

from scipy.stats import spearmanr

from data_bridge.models import AgentTrajectory, EnvironmentState, LLMCall, Step, WindowOutcomes
from data_bridge.window_ids import end_of, start_of, windows_from
from data_bridge.worlds.load import load_world
from trainer.judge.reward import RewardJudge
from trainer.types import Group, JudgedGroup
from trainer.world.agents import scripted_cast
from trainer.world.market import Market, outcomes_of
from trainer.world.player import AgentHour, PlayedHour, Player
from trainer.world.quests.errands import Quests
from trainer.world.quests.truth import facts_of
from trainer.world.rules import WorldRules
from trainer.world.worlds import MARKET, QUESTS


async def played_groups(hours: int, agents: int, seed: int, luck: float) -> tuple[list[Group], dict[str, float]]:
    """One group for each of the first ``hours`` hours whose news points somewhere, and the skill of each agent."""
    market = Market(seed=seed, luck=luck, stage="one", decisions=1)
    cast = scripted_cast(agents, seed)
    upcoming = windows_from("2026-03-02T00:00", 24 + 4 * hours)
    pointed = list(islice((window for window in upcoming if market.hour(window).news[0].direction), hours))
    groups = [group_of(hour) async for hour in Player(market, cast).play(pointed)]
    return groups, {agent.agent_id: agent.skill or 0.0 for agent in cast}


async def quest_groups(hours: int, agents: int, world: Quests) -> tuple[list[Group], dict[str, float]]:
    """One group for each of ``hours`` hours of errands, and the skill of each agent."""
    cast = scripted_cast(agents, world.seed, QUESTS)
    played = Player(world, cast).play(windows_from("2026-03-02T00:00", hours))
    return [quest_group_of(hour) async for hour in played], {agent.agent_id: agent.skill or 0.0 for agent in cast}


async def skill_found(world: Quests, hours: int, agents: int = 8) -> float:
    """The rank correlation of an agent's mean score by ``--judge reward`` with its planted skill."""
    groups, skills = await quest_groups(hours, agents, world)
    judge, scored = RewardJudge(), defaultdict[str, list[float]](list)
    for group in groups:
        judged = await judge.judge(group)
        assert isinstance(judged, JudgedGroup)
        assert not judged.left_out
        for member, verdict in zip(judged.group.trajectories, judged.verdicts, strict=True):
            scored[member.agent_id].append(verdict.score)
    return float(spearmanr([fmean(scored[name]) for name in skills], list(skills.values())).statistic)


def quest_group_of(played: PlayedHour) -> Group:
    name = played.hour.window_id
    members = tuple(_trajectory(life, played, QUESTS) for life in played.agents)
    return Group(f"{name}/1", name, members, WindowOutcomes(facts=tuple(facts_of(played))), load_world("quests"))


def group_of(played: PlayedHour) -> Group:
    hour, closing = played.hour, played.tape.closing
    members = tuple(_trajectory(life, played) for life in played.agents)
    return Group(f"{hour.window_id}/1", hour.window_id, members, outcomes_of(hour, closing, closing))


def _trajectory(life: AgentHour, played: PlayedHour, rules: WorldRules = MARKET) -> AgentTrajectory:
    window_id = played.hour.window_id
    name = f"{window_id}-{life.agent.index}"
    steps = [
        Step(
            step_number=number,
            state=EnvironmentState(balance=step.book.balance, lifetime_pnl=step.book.lifetime_pnl + step.gain),
            llm_calls=[LLMCall(model=step.answer.model, messages=list(step.messages), response=step.answer.text)],
            action=rules.action(step.decision, step.error, step.price, step.book, played.hour),
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
