"""The closed loop on the simulated market: play a day with the newest checkpoint, train on it, play the next.

The market has a clock of its own: the first day of the first run ends where the wall clock (or ``--until``) stands,
every later day follows on the one before, so that a run can be repeated and the next run goes on where this one
ended. A loop that was killed plays and trains what is missing of its day, then goes on.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from data_bridge.errors import Interrupted, NotEnoughData
from data_bridge.postgres_reader import WindowReader
from data_bridge.quality import Rules
from data_bridge.window_ids import GRACE, end_of, start_of, window_of
from trainer.config.sections import window_rules
from trainer.ledger.clock import newest_simulated
from trainer.ledger.runs import StoredRun
from trainer.plan.outlook import look_ahead
from trainer.plan.run_plan import NOTHING_PLANNED
from trainer.run.session import Session, fingerprint
from trainer.run.training_run import TrainingRun, open_run
from trainer.types import abilities_of
from trainer.world.cast import model_cast
from trainer.world.clock import last_closed_windows, windows_from
from trainer.world.exploration import Exploration
from trainer.world.market import Market
from trainer.world.play import play_windows
from trainer.world.policies import ChatPolicy
from trainer.world.tally import Tally

if TYPE_CHECKING:
    from trainer.inference.engine import Engine

logger = logging.getLogger(__name__)

_ASKED_AT_ONCE = 64
"""Decisions that are put to the model together; windows are asked about in advance to reach it."""


@dataclass(frozen=True, slots=True)
class Day:
    """One iteration: its windows, and the moment at which the last of them is closed."""

    number: int
    window_ids: tuple[str, ...]

    @property
    def now(self) -> datetime:
        return end_of(self.window_ids[-1], 1) + GRACE

    def rules(self, rules: Rules) -> Rules:
        """``rules`` as they are at the end of this day, for this day's windows only."""
        return replace(rules, now=self.now, lookback=self.now - start_of(self.window_ids[0]))


async def train_in_closed_loop(session: Session) -> TrainingRun:
    """Play and train every day of the run, and end it."""
    settings, ledger = session.settings, session.ledger
    unfinished = await _unfinished(session)
    progress: dict[str, Any] = dict(unfinished.summary) if unfinished is not None else {}
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(
            open_run(session, NOTHING_PLANNED, unfinished.run_id if unfinished is not None else None)
        )
        first = progress.get("first_window") or await _first_window(session)
        days: list[dict[str, Any]] = list(progress.get("days", []))
        run.summary |= {"first_window": first, "days": days}
        await ledger.note(run.run_id, run.summary)
        engine = await stack.enter_async_context(_engine(session))
        silent: NotEnoughData | None = None
        for number in range(len(days), settings.iterations):
            if 0 < settings.max_steps <= run.progress.steps:
                break
            day = _day(first, number, settings.windows_per_iteration)
            tally, played_with = await _play(session, engine, day)
            try:
                await _train(run, day)
            except NotEnoughData as error:
                silent = error
                session.view.say(f"day {number + 1}: {error}")
            days.append(_figures(day, tally, played_with, run, steps_before=sum(one["steps"] for one in days)))
            await ledger.note(run.run_id, {"days": days})
            session.view.say(_sentence(days[-1], settings.iterations))
        if run.progress.steps == 0 and silent is not None:
            raise silent
    return run


async def _unfinished(session: Session) -> StoredRun | None:
    """The run to take up. One whose days are all over and taught nothing is left at that: the next days may."""
    settings, ledger = session.settings, session.ledger
    if not settings.resume:
        return None
    found = await ledger.find_unfinished_run(settings.model, fingerprint(settings))
    if found is None or len(found.summary.get("days", ())) < settings.iterations:
        return found
    return found if await ledger.trained_batches(found.run_id) else None


async def _first_window(session: Session) -> str:
    settings = session.settings
    newest = await newest_simulated(session.database)
    if newest is not None:
        return window_of(start_of(newest) + timedelta(hours=1))
    hours = settings.iterations * settings.windows_per_iteration
    return last_closed_windows(hours, window_rules(settings).now)[0]


def _day(first: str, number: int, hours: int) -> Day:
    start = window_of(start_of(first) + timedelta(hours=number * hours))
    return Day(number, windows_from(start, hours))


@asynccontextmanager
async def _engine(session: Session) -> AsyncIterator[Engine | None]:
    """The embedded model for checkpoints on this machine; None where the backend serves its own."""
    if abilities_of(session.backend.name).serves_itself:
        yield None
        return
    from trainer.inference.open import open_engine

    async with open_engine(session.settings) as engine:
        yield engine


async def _play(session: Session, engine: Engine | None, day: Day) -> tuple[Tally, str]:
    """Play what is not played yet of ``day`` with the newest checkpoint."""
    from trainer.inference.open import open_chat_model

    settings = session.settings
    checkpoint = session.backend.checkpoint(await session.backend.current_step())
    market = Market(settings.world_seed, settings.luck, settings.stage, settings.decisions)
    session.view.say(f"day {day.number + 1}: playing {len(day.window_ids)} windows with {checkpoint.name}")
    async with open_chat_model(checkpoint, settings, engine=engine) as model:
        cast = model_cast(settings.agents, settings.world_seed, ChatPolicy(model, settings.temperature))
        tally = Tally()
        for window_ids in _portions(day.window_ids, max(1, _ASKED_AT_ONCE // settings.agents)):
            if session.stop.is_set():
                raise Interrupted("Stopped while playing; the same command takes the run up again.")
            part = await play_windows(
                session.database,
                settings.home / "spool",
                market,
                cast,
                window_ids,
                exploration=Exploration(how=settings.explore),
                lookahead=len(window_ids),
                on_window=tally.add,
            )
            logger.debug("day %d: %d windows played", day.number + 1, part.windows)
    return tally, checkpoint.name


def _portions(window_ids: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [window_ids[start : start + size] for start in range(0, len(window_ids), size)]


async def _train(run: TrainingRun, day: Day) -> None:
    session = run.session
    rules = day.rules(window_rules(session.settings))
    reader = WindowReader(session.database, rules)
    outlook = await look_ahead(session.settings, reader, rules, session.ledger, run_id=run.run_id)
    await run.extend(outlook.plan)
    await run.train(reader, outlook.windows, outlook.refs)


def _figures(day: Day, tally: Tally, played_with: str, run: TrainingRun, steps_before: int) -> dict[str, Any]:
    """What came of a day; of one that was played before a restart, only what was trained is known."""
    figures: dict[str, Any] = {
        "day": day.number + 1,
        "from": day.window_ids[0],
        "until": day.window_ids[-1],
        "played_with": played_with,
        "steps": run.progress.steps - steps_before,
        "step": run.progress.step,
        "reward": run.progress.latest.get("reward"),
    }
    if tally.windows:
        figures |= {
            "windows_played": tally.windows,
            "valid_share": tally.valid_share,
            "mean_pnl": sum(agent.pnl for agent in tally.agents.values()) / max(tally.trajectories, 1),
        }
    return figures


def _sentence(figures: dict[str, Any], days: int) -> str:
    parts = [f"day {figures['day']}/{days}: played with {figures['played_with']}"]
    if "valid_share" in figures:
        parts.append(f"{figures['valid_share']:.0%} valid actions, {figures['mean_pnl']:+.2f} a window")
    parts.append(f"{figures['steps']} steps to step {figures['step']}")
    return "; ".join(parts)
