"""Which checkpoints may be deleted: old ones that no agent uses or used, and that are no rollback target.

Every step writes a checkpoint, many per week; without this the disk would fill up. The ledger keeps the rows, so that
the lineage of later checkpoints stays complete.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from data_bridge.database import Database
from trainer.ledger.checkpoints import old_checkpoints
from trainer.ledger.releases import one_promotion_at_a_time
from trainer.types import Checkpoint

logger = logging.getLogger(__name__)


class CheckpointFiles(Protocol):
    """What this needs from the backend that stores the files."""

    def checkpoint(self, step: int) -> Checkpoint: ...

    async def remove(self, steps: Sequence[int]) -> list[int]: ...


async def remove_old_checkpoints(database: Database, backend: CheckpointFiles, model: str, *, keep: int) -> list[int]:
    """Delete the files of all but the ``keep`` newest checkpoints and those ever given to all agents or now a canary's.

    Only files that the ledger knows at their recorded location: files from another database in this home stay.
    ``keep`` 0 deletes nothing. Returns the deleted steps.
    """
    if keep == 0:
        return []
    # Under the promotions' lock, so that no checkpoint is promoted or rolled back to while it is deleted.
    async with one_promotion_at_a_time(database) as connection:
        old = await old_checkpoints(connection, model, keep=keep)
        steps = [one.step for one in old if one.location == backend.checkpoint(one.step).location]
        removed = await backend.remove(steps)
    if removed:
        logger.info("removed %d old checkpoints of %s, step %d to %d", len(removed), model, removed[0], removed[-1])
    return removed
