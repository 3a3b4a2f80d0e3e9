"""The closed loop on a simulated world: play a day with the newest checkpoint, train on it, play the next.

The world has its own clock: the first day of the first run ends at the wall clock's time (or ``--until``), and every
later day follows the one before, so that a run is repeatable and the next run continues where this one ended. A loop
that was killed plays and trains the rest of its day, then continues. With ``--max-lag 1`` the next day is played and
judged meanwhile (``side_by_side``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from data_bridge.errors import Interrupted, NotEnoughData
from data_bridge.lesson_prompts import policy_named
from data_bridge.quality import Rules
from data_bridge.window_ids import GRACE, end_of, last_closed_windows, start_of, window_of, windows_from
from trainer.abilities import abilities_of
from trainer.config.derived import window_rules
from trainer.judge.open import measured_by
from trainer.ledger.evaluations import last_trained
from trainer.ledger.releases import incumbent_of
from trainer.ledger.runs import LoopState, PlayedDay, StoredRun
from trainer.ledger.simulation import newest_simulated
from trainer.lessons.open import open_lessons
from trainer.plan.plan import Outlook, SurveyedLog, look_ahead, survey_log
from trainer.progress import counted
from trainer.run.curriculum import joined, worlds_of_day
from trainer.run.session import Session, fingerprint
from trainer.run.side_by_side import open_ahead
from trainer.run.training_run import TrainingRun, open_run
from trainer.train.backends.forks import start_step_of
from trainer.types import NOTHING_PLANNED
from trainer.world.agents import ChatPolicy, Exploration, Exploring, model_cast
from trainer.world.lessons import AgentLessons
from trainer.world.play import Tally, play_windows
from trainer.world.worlds import rules_named

if TYPE_CHECKING:
    from trainer.inference.chat_models import Engine

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ASKED_AT_ONCE = 64
"""Decisions sent to the model together; windows are requested in advance to reach this number."""


EXPLORED = 0.5
"""The share of agents that explore with ``--explore answers``: two of eight for each direction."""


@dataclass(frozen=True, slots=True)
class Day:
    """One iteration: its windows, and the moment when the last of them closes."""

    number: int
    window_ids: tuple[str, ...]

    @property
    def now(self) -> datetime:
        return end_of(self.window_ids[-1], 1) + GRACE

    def rules(self, rules: Rules) -> Rules:
        """``rules`` as they are at the end of this day, for this day's windows only."""
        return replace(rules, now=self.now, lookback=self.now - start_of(self.window_ids[0]))


async def train_in_closed_loop(session: Session, then: Callable[[TrainingRun], Awaitable[T]]) -> tuple[TrainingRun, T]:
    """Play and train every day of the run, await ``then``, and end the run."""
    unfinished = await _unfinished(session)
    async with open_run(session, NOTHING_PLANNED, unfinished.run_id if unfinished is not None else None) as run:
        if unfinished is not None and unfinished.loop is not None:
            run.loop = unfinished.loop
        else:
            run.loop = LoopState(await _first_window(session))
        await session.ledger.note(run.run_id, run.loop)
        await _play_and_train(session, run, run.loop)
        if session.settings.windows.held_out_share > 0:
            run.progress.doing("playing", "the hours that decide")
            run.now = await play_for_evaluation(session, await _end_of_training(session, run.loop))
        result = await then(run)
    return run, result


async def _play_and_train(session: Session, run: TrainingRun, loop: LoopState) -> None:
    settings, silent = session.settings, None
    async with _engine(session) as engine, open_ahead(run) as ahead:
        for number in range(len(loop.days), settings.run.iterations):
            if 0 < settings.training.max_steps <= run.progress.steps:
                break
            day = _day(loop.first_window, number, settings.run.windows_per_iteration)
            run.progress.parts, run.progress.parts_done = settings.run.iterations, number
            run.progress.doing("playing", f"day {number + 1} of {settings.run.iterations}")
            played = None if ahead is None else await ahead.played(number)
            tally, played_with = played or await _play(session, engine, day, run.run_id)
            if ahead is not None and number + 1 < settings.run.iterations:
                following = _day(loop.first_window, number + 1, settings.run.windows_per_iteration)
                play = partial(_play, session, engine, following, run.run_id)
                await ahead.start(number + 1, play, partial(_plan, run, following))
            try:
                await _train(run, day)
            except NotEnoughData as error:
                silent = error
                session.view.say(f"day {number + 1}: {error}")
            steps_before = sum(one.steps for one in loop.days)
            loop = LoopState(loop.first_window, (*loop.days, _figures(day, tally, played_with, run, steps_before)))
            run.loop = loop
            await session.ledger.note(run.run_id, loop)
            session.view.say(_sentence(loop.days[-1], settings.run.iterations))
    run.progress.parts_done = run.progress.parts
    if run.progress.steps == 0 and silent is not None:
        raise silent


async def _end_of_training(session: Session, loop: LoopState) -> datetime:
    """When the hours that decide may begin. A run that was killed within a day has trained more than whole days."""
    ends = [end_of(day.last_window, 1) for day in loop.days]
    trained = await last_trained(session.database.pool, {session.settings.model.model})
    return max([*ends, *([] if trained is None else [trained])]) + session.settings.windows.embargo


async def play_for_evaluation(session: Session, start: datetime | None = None) -> datetime:
    """Play the hours that decide about the result: from ``start``, or after all that was played. When they are over."""
    first = window_of(start) if start is not None else await _first_window(session)
    hours = Day(0, windows_from(first, session.settings.windows.eval_windows))
    async with _engine(session) as engine:
        await _play(
            session, engine, hours, heading=f"evaluation: playing {counted(len(hours.window_ids), 'later window')}"
        )
    return hours.now


async def _unfinished(session: Session) -> StoredRun | None:
    """The run to resume: not one whose days are all over without training anything, since the next days may train."""
    settings, ledger = session.settings, session.ledger
    if not settings.run.resume:
        return None
    found = await ledger.find_unfinished_run(settings.model.model, fingerprint(settings))
    if found is None or found.loop is None or len(found.loop.days) < settings.run.iterations:
        return found
    return found if await ledger.trained_batches(found.run_id) else None


async def _first_window(session: Session) -> str:
    settings = session.settings
    newest = await newest_simulated(session.database)
    if newest is not None:
        return window_of(start_of(newest) + timedelta(hours=1))
    hours = settings.run.iterations * settings.run.windows_per_iteration
    if settings.windows.held_out_share > 0:
        hours += settings.windows.eval_windows + -(-settings.windows.embargo // timedelta(hours=1))
    return last_closed_windows(hours, window_rules(settings.windows).now)[0]


def _day(first: str, number: int, hours: int) -> Day:
    start = window_of(start_of(first) + timedelta(hours=number * hours))
    return Day(number, windows_from(start, hours))


@asynccontextmanager
async def _engine(session: Session) -> AsyncIterator[Engine | None]:
    """The embedded model for checkpoints on this machine; None if the backend serves its own."""
    if abilities_of(session.backend.name).serves_itself:
        yield None
        return
    from trainer.inference.chat_models import open_engine

    async with open_engine(session.settings.model, session.settings.common.home) as engine:
        yield engine


async def _play(
    session: Session,
    engine: Engine | None,
    day: Day,
    run_id: str | None = None,
    decided: asyncio.Event | None = None,
    heading: str = "",
) -> tuple[Tally, str]:
    """Play the remaining windows of ``day`` with the newest checkpoint.

    The hours of a run are played by its curriculum, those that decide about its result in the world that was asked
    for. ``decided`` is set when nothing more depends on what is trained meanwhile.
    """
    from trainer.inference.chat_models import Access, open_chat_model

    settings = session.settings
    checkpoint = session.backend.checkpoint(await start_step_of(session.backend))
    said, rules = settings.market, rules_named(settings.windows.world)
    world = rules.world(said.world_seed, said.luck, said.stage, said.decisions)
    heading = heading or f"day {day.number + 1}: playing {counted(len(day.window_ids), 'window')}"
    session.view.say(f"{heading} with {checkpoint.name}")
    worlds = {} if run_id is None else await worlds_of_day(session, run_id, world, day.window_ids)
    exploration = exploration_of(said.explore)
    if worlds:
        exploration = await joined(session, exploration, world, day.window_ids)
    if decided is not None:
        decided.set()
    away = session.database.gone_after
    access = Access(settings.common.home, settings.model, settings.promotion, settings.secrets, away)
    async with open_chat_model(checkpoint, access, engine) as model, _lessons(session) as lessons:
        cast = model_cast(said.agents, said.world_seed, ChatPolicy(model, said.temperature), rules)
        tally = Tally()
        for window_ids in _portions(day.window_ids, max(1, _ASKED_AT_ONCE // said.agents)):
            if session.stop.is_set():
                raise Interrupted("Stopped while playing; the same command resumes the run.")
            part = await play_windows(
                session.database,
                settings.common.home / "spool",
                world,
                cast,
                window_ids,
                exploration=exploration,
                lookahead=len(window_ids),
                markets=worlds,
                on_window=tally.add,
                lessons=lessons,
            )
            logger.debug("day %d: %d windows played", day.number + 1, part.windows)
    return tally, checkpoint.name


@asynccontextmanager
async def _lessons(session: Session) -> AsyncIterator[AgentLessons | None]:
    """What agents look up while they play: by ``--lessons``, or as in what was promoted; None for nothing."""
    settings = session.settings
    used = await incumbent_of(session.database, settings.model.model)
    name = settings.lessons.lessons if settings.lessons.lessons is not None else used and used.lessons_policy
    policy = policy_named(name or "")
    if policy is None:
        yield None
        return
    async with open_lessons(session.database, settings.embedding, settings.secrets) as recall:
        yield AgentLessons(recall, settings.lessons.game, policy)


def exploration_of(how: Exploring) -> Exploration:
    """With ``answers`` half of the agents, always: each offer as often as any other in every hour that is trained."""
    return Exploration(EXPLORED, EXPLORED, how=how) if how == "answers" else Exploration(how=how)


def _portions(window_ids: tuple[str, ...], size: int) -> list[tuple[str, ...]]:
    return [window_ids[start : start + size] for start in range(0, len(window_ids), size)]


async def _train(run: TrainingRun, day: Day) -> None:
    log, outlook = await _plan(run, day)
    await run.session.ledger.extend(run.run_id, outlook.plan)
    await run.train(log.reader, outlook.windows, outlook.refs)


async def _plan(run: TrainingRun, day: Day) -> tuple[SurveyedLog, Outlook]:
    session, settings = run.session, run.session.settings
    rules = day.rules(window_rules(settings.windows))
    judged = (settings.judge.purposes, measured_by(settings.judge))
    log = await survey_log(session.database, rules, *judged, model=settings.model.model)
    outlook = await look_ahead(
        log.surveyed,
        log.reader,
        session.ledger,
        settings.groups,
        model=settings.model.model,
        seed=settings.chance.seed,
        run_id=run.run_id,
    )
    return log, outlook


def _figures(day: Day, tally: Tally, played_with: str, run: TrainingRun, steps_before: int) -> PlayedDay:
    played = tally.windows > 0
    return PlayedDay(
        day=day.number + 1,
        first_window=day.window_ids[0],
        last_window=day.window_ids[-1],
        played_with=played_with,
        steps=run.progress.steps - steps_before,
        step=run.progress.step,
        reward=run.progress.latest.get("reward"),
        windows_played=tally.windows if played else None,
        valid_share=tally.valid_share if played else None,
        mean_pnl=sum(agent.pnl for agent in tally.agents.values()) / max(tally.trajectories, 1) if played else None,
    )


def _sentence(figures: PlayedDay, days: int) -> str:
    parts = [f"day {figures.day}/{days}: played with {figures.played_with}"]
    if figures.valid_share is not None:
        parts.append(f"{figures.valid_share:.0%} valid actions, {figures.mean_pnl:+.2f} per window")
    parts.append(f"{counted(figures.steps, 'step')} to step {figures.step}")
    return "; ".join(parts)
