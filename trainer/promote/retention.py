"""Which checkpoints may leave the disk: old ones that no agent uses, used, or could be sent back to.

Every step leaves a checkpoint, every week many; without this the disk fills. The ledger keeps the rows, so that the
lineage of what was built on a deleted checkpoint is still whole.
"""

from __future__ import annotations

import logging

from data_bridge.database import Database
from trainer.promote.publish import one_promotion_at_a_time
from trainer.types import TrainingBackend

logger = logging.getLogger(__name__)

_OLD = """
SELECT step, location FROM hindsight.checkpoints c
WHERE model = $1
  AND step <= (SELECT step FROM hindsight.checkpoints WHERE model = $1 ORDER BY step DESC OFFSET $2 LIMIT 1)
  AND NOT EXISTS (SELECT 1 FROM hindsight.promotions p WHERE p.model = c.model AND p.step = c.step
                  AND (p.serving_since IS NOT NULL OR p.state = 'canary'))
ORDER BY step
"""


async def remove_old_checkpoints(database: Database, backend: TrainingBackend, model: str, *, keep: int) -> list[int]:
    """Delete the files of all but the ``keep`` newest checkpoints and those ever given to all agents or now a canary's.

    Only files that the ledger knows, where it knows them: what another database trained into this home is not ours.
    ``keep`` 0 deletes nothing. Returns the deleted steps.
    """
    if keep == 0:
        return []
    # Under the promotions' lock, so that nobody promotes or goes back to a checkpoint while it is deleted.
    async with one_promotion_at_a_time(database) as connection:
        rows = await connection.fetch(_OLD, model, keep)
        steps = [row["step"] for row in rows if row["location"] == backend.checkpoint(row["step"]).location]
        removed = await backend.remove(steps)
    if removed:
        logger.info("removed %d old checkpoints of %s, step %d to %d", len(removed), model, removed[0], removed[-1])
    return removed
