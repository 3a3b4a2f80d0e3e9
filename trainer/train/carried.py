"""``--remainder carry``: what a pass leaves over is trained first in the next one, in a step of full size.

A pass is a day of the closed loop, or a run on a log. Groups that wait are taken up by the model's next pass whatever
its ``--remainder``, with the verdicts that were paid for. One of which a row is gone, changed or at fault is given up,
and its rows are counted as without a peer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from data_bridge.quality import Exclusion, Reason
from data_bridge.reader import WindowReader
from trainer.ledger.batch_records import GroupRecord
from trainer.ledger.runs import Ledger
from trainer.train.replay import StepGroups
from trainer.train.stored_groups import record_of_group, with_rows
from trainer.types import JudgedGroup, PlannedWindow

logger = logging.getLogger(__name__)

_GIVEN_UP = "its group was carried over, and a row of it has gone or changed since"


@dataclass(slots=True)
class CarriedGroups:
    """The groups of one model that wait for a pass, and those that this pass hands on."""

    model: str
    run_id: str
    ledger: Ledger
    reader: WindowReader
    is_on: bool = False
    """Whether this pass hands on what it leaves over; what waits is taken up in any case."""
    handed_on: int = 0

    async def taken_up(self, windows: Iterable[PlannedWindow]) -> list[JudgedGroup]:
        """What waits, the oldest first; not a group of which one of the same name is in ``windows`` of this pass."""
        found: list[JudgedGroup] = []
        carried = await self.ledger.carried(self.model)
        names = {waiting.group_id for waiting in carried}
        planned = {own.group_id for one in windows for own in one.groups if own.group_id in names} if names else ()
        for waiting in carried:
            if waiting.group_id in planned:
                continue
            judged = await with_rows(waiting, self.reader, self.ledger, self.model)
            if judged is None:
                await self._give_up(waiting)
            else:
                found.append(judged)
        return found

    async def unless_handed_on(self, rest: StepGroups | None) -> StepGroups | None:
        """What a pass leaves over, to be trained now; None if there is nothing, or if it is kept for the next pass."""
        if rest is None or not self.is_on:
            return rest
        await self.ledger.carry(self.model, self.run_id, [record_of_group(judged) for judged in rest.groups])
        self.handed_on = len(rest.groups)
        return None

    async def _give_up(self, record: GroupRecord) -> None:
        logger.info("window %s: group %s is given up: %s", record.window_id, record.group_id, _GIVEN_UP)
        members = zip(record.agent_ids, record.verdicts, strict=True)
        excluded = [
            Exclusion(verdict.trajectory_id, agent_id, record.window_id, Reason.NO_COMPARABLE_PEER, _GIVEN_UP)
            for agent_id, verdict in members
        ]
        await self.ledger.exclude(self.run_id, excluded)
        await self.ledger.drop_carried(self.model, [one.trajectory_id for one in excluded])
