"""Evaluation without a simulator: the world says whether a reply is a valid action and, where facts tell, its worth.

A world that cannot parse replies has no replay: then the judge alone tells good replies from bad ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from data_bridge.models import Action
from data_bridge.worlds.world import World
from trainer.evaluate.decision_points import DecisionPoint, Replayed


@dataclass(frozen=True, slots=True)
class AdapterReplay:
    """Reads replies with the adapter; nothing is carried out, so no safety guard can stop anything."""

    world: World

    def knows(self, point: DecisionPoint) -> bool:
        """Whether the facts say what any reply at this point would have been worth."""
        logged = point.step.action
        return self.world.can_value_replies and logged is not None and self._told(logged, point) is not None

    def play(self, point: DecisionPoint, reply: str) -> Replayed | None:
        action = self.world.parse(reply, point.step.action)
        if action is None:
            invalid = Action(action_type="INVALID", success=False, error="not a valid action of this world")
            return Replayed(invalid, 0.0 if self.knows(point) else None, is_valid=False, is_blocked=None)
        return Replayed(action, self._worth(action, point), is_valid=True, is_blocked=None)

    def _worth(self, action: Action, point: DecisionPoint) -> float | None:
        """Nothing, for an answer about something else than was asked: the right action for that is no merit here."""
        logged = point.step.action
        if logged is not None and self.knows(point) and self._subject(action) != self._subject(logged):
            return 0.0
        return self._told(action, point)

    def _told(self, action: Action, point: DecisionPoint) -> float | None:
        return self.world.worth(action, point.outcomes)

    def _subject(self, action: Action) -> str | None:
        return self.world.subject_of(action)
