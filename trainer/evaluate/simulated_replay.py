"""Evaluation on a simulated world: the result of a reply, a script that reads, one that picks.

The only place where evaluation uses the world. The planted truth stays there: a replay knows what happened, not skill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from data_bridge.database import Database
from trainer.evaluate.comparison import Contestant
from trainer.evaluate.decision_points import DecisionPoint, Replayed
from trainer.types import Completion
from trainer.world.agents import DEFAULT_EXPLORATION, Ask, ScriptedPolicy
from trainer.world.chance import pick
from trainer.world.replay import Moment, SimulatedWindow, decision_points, load_windows, score_reply
from trainer.world.rules import WorldRules


@dataclass(slots=True)
class SimulatedReplay:
    """Replays decisions of the simulated windows in an evaluation."""

    windows: Mapping[str, SimulatedWindow]
    _moments: dict[str, Moment | None] = field(default_factory=dict)

    def knows(self, point: DecisionPoint) -> bool:
        return self.moment(point) is not None

    def play(self, point: DecisionPoint, reply: str) -> Replayed | None:
        moment = self.moment(point)
        if moment is None:
            return None
        score = score_reply(moment, reply)
        decision, error = moment.read(reply)
        result = moment.result(decision) if error is None else None
        hour = self.windows[point.window_id].hour()
        action = moment.rules.action(decision, error, result, moment.book, hour)
        return Replayed(action, score.pnl, is_valid=score.is_valid, is_blocked=score.is_blocked)

    @property
    def rules(self) -> WorldRules:
        """Of the world that most of the windows were played in."""
        return Counter(window.rules for window in self.windows.values()).most_common(1)[0][0]

    def moment(self, point: DecisionPoint) -> Moment | None:
        """The world's side of ``point``; None if its window is not simulated or its prompt has other text."""
        if point.key not in self._moments:
            self._moments[point.key] = self._rebuild(point)
        return self._moments[point.key]

    def _rebuild(self, point: DecisionPoint) -> Moment | None:
        window = self.windows.get(point.window_id)
        if window is None:
            return None
        moments = decision_points(window, point.trajectory)
        moment = moments[point.step_index] if point.step_index < len(moments) else None
        return moment if moment is not None and list(moment.messages) == point.messages else None


@dataclass(frozen=True, slots=True)
class NewsScript:
    """A script that follows the news: the baseline of a simulated world."""

    replay: SimulatedReplay
    name: str = "script that follows the news"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        moment = self.replay.moment(point)
        if moment is None:  # not a simulated window: only the log is available for comparison
            return [Completion(point.call.response, model=self.name)] * samples
        script = ScriptedPolicy(skill=1.0)
        answers = [
            await script.answer(
                Ask(
                    moment.messages,
                    moment.seen,
                    None,
                    DEFAULT_EXPLORATION,
                    moment.limits,
                    (seed, point.key, sample),
                    moment.rules,
                )
            )
            for sample in range(samples)
        ]
        return [Completion(answer.text, model=self.name) for answer in answers]


@dataclass(frozen=True, slots=True)
class RandomScript:
    """Always valid, picked at random: one of the current offers that the guard lets through, each equally likely.

    One reply, whatever is asked for, drawn by the decision point.
    """

    replay: SimulatedReplay
    otherwise: Contestant
    """For windows that are not simulated."""
    name: str = "random valid action"

    async def replies(self, point: DecisionPoint, *, samples: int, temperature: float, seed: int) -> list[Completion]:
        moment = self.replay.moment(point)
        if moment is None:
            return await self.otherwise.replies(point, samples=samples, temperature=temperature, seed=seed)
        allowed = moment.rules.allowed(moment.seen, moment.book, moment.gain, moment.limits)
        return [Completion(str(pick(allowed, seed, point.key, "random")), model=self.name)]


def follows_news(moment: Moment, reply: str) -> bool | None:
    """Whether ``reply`` does what its news points to; None if no news points anywhere."""
    if not moment.rules.readings(moment.seen, moment.limits):
        return None
    decision, error = moment.read(reply)
    return error is None and bool(moment.rules.follows(decision, moment.seen))


async def load_replay(database: Database, window_ids: Iterable[str]) -> SimulatedReplay | None:
    """A replay of the simulated windows among ``window_ids``; None if there are none."""
    windows = await load_windows(database, window_ids)
    return SimulatedReplay(windows) if windows else None
