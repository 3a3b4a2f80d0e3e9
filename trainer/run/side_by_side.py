"""Play and judge the next day while this one is trained (``--max-lag 1``).

The next day is played by the checkpoint that the training of this day starts from: its replies carry that name, and
training corrects for the steps that came since (docs/off-policy.md). Which checkpoint plays, and which market, is
decided before the training starts, so that a run is repeatable however the two overlap. Then the day's groups are
judged: their verdicts are in the ledger when training asks for them. Play is never more than one day ahead.

With ``--max-lag 0`` nothing here does anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from data_bridge.errors import HindsightError
from data_bridge.quality import check
from data_bridge.redaction import redact
from trainer.plan.grouping import assemble
from trainer.plan.plan import Outlook, SurveyedLog
from trainer.run.session import Session
from trainer.run.training_run import TrainingRun
from trainer.types import MIN_GROUP, Group, Judge, JudgedGroup, JudgeFailure, JudgeIdentity
from trainer.world.play import Tally

logger = logging.getLogger(__name__)

Played = tuple[Tally, str]
"""What came of a day, and the name of the checkpoint that played it."""
Plan = Callable[[], Awaitable[tuple[SurveyedLog, Outlook]]]
"""Surveys a day that was played, and plans it."""


class JudgedAhead:
    """A judge that may have been asked about a group before; then that verdict is returned, and paid for once."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._asked: dict[tuple[str, ...], asyncio.Task[JudgedGroup | JudgeFailure]] = {}

    @property
    def identity(self) -> JudgeIdentity:
        return self._judge.identity

    def ask(self, group: Group) -> None:
        """Begin to judge ``group``; the judge limits its own calls."""
        if _name(group) not in self._asked:
            task = asyncio.create_task(self._judge.judge(group), name=f"judge {group.group_id} ahead")
            self._asked[_name(group)] = task

    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        asked = self._asked.get(_name(group))
        if asked is None:
            return await self._judge.judge(group)
        verdict = await asyncio.shield(asked)  # a pass that is stopped does not take back what was asked
        self._asked.pop(_name(group), None)
        return verdict

    async def close(self) -> None:
        """Give up what was asked and not needed. The judge itself is closed by whoever opened it."""
        left = list(self._asked.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._asked.clear()


def _name(group: Group) -> tuple[str, ...]:
    return (group.group_id, *(one.trajectory_id for one in group.trajectories))


class Ahead:
    """The one day that is played ahead."""

    def __init__(self, session: Session, judge: JudgedAhead) -> None:
        self._session = session
        self._judge = judge
        self._day: tuple[int, asyncio.Task[Played]] | None = None

    async def start(self, number: int, play: Callable[[asyncio.Event], Awaitable[Played]], plan: Plan) -> None:
        """Begin to play day ``number``. Returns when ``play`` has set its event: it is decided who plays, and what."""
        decided = asyncio.Event()
        task = asyncio.create_task(self._play_and_judge(play, decided, plan), name=f"play day {number + 1}")
        self._day = (number, task)
        waiting = asyncio.create_task(decided.wait(), name="wait until it is decided who plays")
        try:
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def played(self, number: int) -> Played | None:
        """What came of playing day ``number``, when it is over; None if it was not begun. Raises what stopped it."""
        if self._day is None or self._day[0] != number:
            return None
        (_, task), self._day = self._day, None
        return await task

    async def close(self) -> None:
        """Stop playing. What was written stays, and the next run of the loop plays the rest of the day."""
        if self._day is None:
            return
        (number, task), self._day = self._day, None
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            logger.warning("day %d, played ahead: %s", number + 1, redact(str(ended) or type(ended).__name__))

    async def _play_and_judge(
        self, play: Callable[[asyncio.Event], Awaitable[Played]], decided: asyncio.Event, plan: Plan
    ) -> Played:
        tally = await play(decided)
        if not self._session.stop.is_set():
            try:
                await self._ask(*await plan())
            except HindsightError as error:  # the day's own turn meets the same fault, and is the place to report it
                logger.info("the groups of the day ahead were not judged: %s", redact(str(error)))
        return tally

    async def _ask(self, log: SurveyedLog, outlook: Outlook) -> None:
        """Read the groups of the day and begin to judge them."""
        session = self._session
        windows = outlook.plan.windows
        planned = {window.window_id: number for number, window in enumerate(windows)}
        refs = [ref for ref in outlook.refs if ref.window_id in planned]
        rules = replace(log.reader.rules, min_agents=MIN_GROUP)
        async with aclosing(log.reader.stream(refs)) as stream:
            async for window in stream:
                lasting = await session.ledger.lasting(session.settings.model.model, [window.window_id])
                for group in assemble(check(window, rules), windows[planned[window.window_id]], lasting).groups:
                    self._judge.ask(group)


@asynccontextmanager
async def open_ahead(run: TrainingRun) -> AsyncIterator[Ahead | None]:
    """What plays ahead of ``run``, ended with the block; None with ``--max-lag 0``."""
    if run.session.settings.run.max_lag == 0:
        yield None
        return
    judge = run.judge
    async with AsyncExitStack() as stack:
        run.judge = asked = JudgedAhead(judge)
        stack.callback(setattr, run, "judge", judge)
        stack.push_async_callback(asked.close)
        ahead = Ahead(run.session, asked)
        stack.push_async_callback(ahead.close)
        yield ahead
