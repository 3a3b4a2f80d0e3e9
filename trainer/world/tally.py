"""What came of the windows that were played, agent by agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainer.world.player import PlayedHour


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
        """Share of actions that failed: replies that are no action, and orders that the guard stopped."""
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
        """Share of actions that could be carried out."""
        errors = sum(line.errors for line in self.agents.values())
        return 1 - errors / self.actions if self.actions else 0.0
