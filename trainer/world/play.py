"""Plays windows into the database: the agents play, the recorder writes, the outcomes close the window.

A window that has been played is not changed, so that an interrupted call can be repeated and continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.migrate import has_game_tables, owns_game_tables
from data_bridge.recorder import Recorder
from trainer.ledger import simulation
from trainer.world.agents import DEFAULT_EXPLORATION, EXPLORER, Agent, Exploration
from trainer.world.lessons import AgentLessons
from trainer.world.player import AgentHour, PlayedHour, Player
from trainer.world.record import record_hour
from trainer.world.rules import SimulatedWorld
from trainer.world.worlds import rules_of, settings_of

_MAX_AWAY = timedelta(seconds=15)
"""How long the database may be away before a world that is played stops; what is recorded waits in the spool."""
_AT_THE_END = timedelta(seconds=2)


@dataclass(slots=True)
class AgentTally:
    """One agent over all its windows."""

    name: str
    role: str
    windows: int = 0
    won: int = 0
    pnl: float = 0.0
    actions: int = 0
    errors: int = 0
    blocked: int = 0

    @property
    def win_rate(self) -> float:
        """Share of windows with a profit."""
        return self.won / self.windows if self.windows else 0.0

    @property
    def error_rate(self) -> float:
        """Share of actions that failed: replies that are not an action, and orders that the guard stopped."""
        return self.errors / self.actions if self.actions else 0.0


@dataclass(slots=True)
class Tally:
    """All agents; ``add`` every hour that was played."""

    agents: dict[str, AgentTally] = field(default_factory=dict)
    windows: int = 0

    def add(self, played: PlayedHour) -> None:
        self.windows += 1
        for life in played.agents:
            agent = life.agent
            line = self.agents.setdefault(agent.agent_id, AgentTally(agent.name, agent.role))
            line.windows += 1
            line.won += life.pnl > 0
            line.pnl = round(line.pnl + life.pnl, 2)
            line.actions += len(life.steps)
            line.errors += sum(step.error is not None for step in life.steps)
            line.blocked += sum(step.error is not None and step.error.blocked for step in life.steps)

    @property
    def trajectories(self) -> int:
        return sum(line.windows for line in self.agents.values())

    @property
    def actions(self) -> int:
        return sum(line.actions for line in self.agents.values())

    @property
    def valid_share(self) -> float:
        """Share of actions that could be executed."""
        errors = sum(line.errors for line in self.agents.values())
        return 1 - errors / self.actions if self.actions else 0.0


async def play_windows(
    database: Database,
    spool_dir: Path,
    market: SimulatedWorld,
    cast: Sequence[Agent],
    window_ids: Sequence[str],
    *,
    exploration: Exploration = DEFAULT_EXPLORATION,
    limits: Any = None,
    lookahead: int = 0,
    write_together: int = 1,
    markets: Mapping[str, SimulatedWorld] | None = None,
    on_window: Callable[[PlayedHour], None] | None = None,
    lessons: AgentLessons | None = None,
) -> Tally:
    """Play those of ``window_ids`` that have not been played, in order; returns the results by agent.

    The first decisions of ``lookahead`` more windows are requested in advance, for models that batch requests.
    ``write_together`` windows are written at a time: faster, but an interruption loses up to that many. ``markets``
    names the windows that are played in another market than ``market``: those of a curriculum. With ``lessons`` every
    agent is shown what was known by then, and what it was shown is stored before the window is.
    """
    await refuse_a_live_game(database)
    others, rules = markets or {}, rules_of(market)
    limits = rules.limits if limits is None else limits
    worlds = {window_id: settings_of(others.get(window_id, market)) for window_id in window_ids}
    todo = await simulation.unplayed(database, worlds, rules.edition)
    first_index = await simulation.windows_played(database, market.seed)
    player = Player(market, cast, exploration, limits, others, lessons)
    known = await simulation.balances(database, [agent.agent_id for agent in cast])
    player.resume({agent_id: rules.book(*figures) for agent_id, figures in known.items()})
    tally = Tally()
    async with Recorder(database, spool_dir, patience=_AT_THE_END) as recorder:
        waiting: list[PlayedHour] = []

        async def write() -> None:
            numbered = enumerate(waiting, start=first_index + tally.windows)
            windows = [
                _window_row(others.get(played.hour.window_id, market), limits, played, index)
                for index, played in numbered
            ]
            await simulation.claim(database, windows)
            if lessons is not None:
                await lessons.log(database, waiting, market.seed)
            await asyncio.gather(*(record_hour(recorder, database, played, market.seed, rules) for played in waiting))
            await simulation.remember(database, windows, [_agent_row(market, life) for life in waiting[-1].agents])
            for played in waiting:
                tally.add(played)
                if on_window is not None:
                    on_window(played)
            waiting.clear()

        async with aclosing(player.play(todo, first_index=first_index, lookahead=lookahead)) as hours:
            async for played in hours:
                waiting.append(played)
                if len(waiting) >= write_together:
                    await write()
        if waiting:
            await write()
        await recorder.flush(_MAX_AWAY)
    return tally


async def refuse_a_live_game(database: Database) -> None:
    """ConfigurationError for a database whose tables belong to a game. Read-only, so that it leaves nothing there."""
    async with database.pool.acquire() as connection:
        if await has_game_tables(connection) and not await owns_game_tables(connection):
            raise ConfigurationError(
                f"{database.label} belongs to a game: simulated agents would mix with real ones; "
                "unset DATABASE_URL, or set it to an empty database."
            )


def _window_row(market: SimulatedWorld, limits: Any, played: PlayedHour, index: int) -> simulation.SimulatedWindowRow:
    own, rules = own_lives(played), rules_of(market)
    return simulation.SimulatedWindowRow(
        played.hour.window_id,
        *settings_of(market),
        *(rules.edition, index),
        limits=msgspec.json.encode(asdict(limits)).decode(),
        tape=msgspec.json.encode(played.tape).decode(),
        tried=len(own),
        succeeded=sum(life.pnl > 0 for life in own),
        states=tuple(rules.state_of(step.seen) for step in played.agents[0].steps),
    )


def own_lives(played: PlayedHour) -> list[AgentHour]:
    """The agents whose every answer was their own: what exploration chose says nothing about how hard an hour was."""
    return [life for life in played.agents if all(step.answer.model != EXPLORER for step in life.steps)]


def _agent_row(market: SimulatedWorld, life: AgentHour) -> simulation.SimulatedAgentRow:
    agent, after = life.agent, life.after
    who = (agent.agent_id, market.seed, agent.index, agent.name, agent.role, agent.starting_balance)
    return simulation.SimulatedAgentRow(*who, after.balance, after.lifetime_pnl, agent.skill)
