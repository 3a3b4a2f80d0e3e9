"""The agents of a world: who they are, what they start with, and (known to nobody who trains or judges) their skill."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from trainer.world.chance import pick, shuffled
from trainer.world.clock import snowflake
from trainer.world.policies import Policy, ScriptedPolicy

ROLES = ("momentum trader", "contrarian", "news trader", "market maker", "analyst")
BALANCES = (9_000.0, 10_000.0, 11_000.0)

_NAMES = ("ada", "blaise", "carl", "dorothy", "emmy", "fermi", "grace", "hypatia", "ibn", "joan", "kurt", "lise")
_FIRST_DAY = datetime(2024, 6, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent. Its name, role, balance and id say nothing about its skill."""

    agent_id: str
    index: int
    name: str
    role: str
    starting_balance: float
    policy: Policy
    skill: float | None = None
    """Planted truth; None for an agent whose policy is a model."""


def scripted_cast(count: int, seed: int) -> tuple[Agent, ...]:
    """``count`` scripted agents with skills spread evenly over [0, 1], in no order."""
    skills = shuffled([index / max(1, count - 1) for index in range(count)], seed, "skills")
    return tuple(_agent(index, (seed, "scripted"), ScriptedPolicy(skill), skill) for index, skill in enumerate(skills))


def model_cast(count: int, seed: int, policy: Policy) -> tuple[Agent, ...]:
    """``count`` agents that share one policy, usually a model's."""
    return tuple(_agent(index, (seed, "model"), policy, None) for index in range(count))


def _agent(index: int, world: tuple[object, ...], policy: Policy, skill: float | None) -> Agent:
    key = (*world, "agent", index)
    return Agent(
        agent_id=snowflake(_FIRST_DAY, index, *key),
        index=index,
        name=f"{_NAMES[index % len(_NAMES)]}-{index + 1}",
        role=pick(ROLES, *key, "role"),
        starting_balance=pick(BALANCES, *key, "balance"),
        policy=policy,
        skill=skill,
    )
