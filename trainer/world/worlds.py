"""Finds the rules of a simulated world."""

from __future__ import annotations

from data_bridge.errors import ConfigurationError
from trainer.world.market_rules import MarketRules
from trainer.world.quests.rules import QuestRules
from trainer.world.rules import SimulatedWorld, WorldRules

MARKET: WorldRules = MarketRules()
QUESTS: WorldRules = QuestRules()

RULES: dict[str, WorldRules] = {rules.name: rules for rules in (MARKET, QUESTS)}
"""The worlds that can be simulated, by their name."""


def rules_named(name: str) -> WorldRules:
    """The rules of the world of ``--world``; ConfigurationError if it cannot be simulated."""
    if name not in RULES:
        raise ConfigurationError(
            f"--world: {name} cannot be simulated, only {' and '.join(RULES)} can: set DATABASE_URL to its log."
        )
    return RULES[name]


def rules_of(world: SimulatedWorld) -> WorldRules:
    return RULES[world.name]


def settings_of(world: SimulatedWorld) -> tuple[int, float, str, int]:
    """What makes the world, as it is stored: seed, luck, stage and decisions. Stages of quests are named as such."""
    stage = world.stage if world.name == MARKET.name else f"{world.name}: {world.stage}"
    return world.seed, world.luck, stage, world.decisions


def world_of(seed: int, luck: float, stage: str, decisions: int) -> SimulatedWorld:
    """The world whose settings were stored so."""
    name, _, own = stage.rpartition(": ")
    return RULES[name or MARKET.name].world(seed, luck, own, decisions)
