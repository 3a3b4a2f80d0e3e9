"""Who did what through a console, when, why, and what came of it."""

from __future__ import annotations

from datetime import timedelta

from data_bridge.database import Database
from data_bridge.redaction import redact


async def note_deed(database: Database, *, who: str, address: str, deed: str, target: str, reason: str) -> int:
    """Before anything is done, so that no deed is without its row; returns its id."""
    return int(
        await database.pool.fetchval(
            "INSERT INTO hindsight.audit (who, address, deed, target, reason) VALUES ($1, $2, $3, $4, $5)"
            " RETURNING audit_id",
            *(who, address, deed, target, redact(reason)),
        )
    )


async def note_outcome(database: Database, audit_id: int, outcome: str) -> None:
    await database.pool.execute(
        "UPDATE hindsight.audit SET outcome = $2 WHERE audit_id = $1", audit_id, redact(outcome)[:2000]
    )


async def forget_audit(database: Database, older_than: timedelta) -> int:
    """Delete rows older than that; returns how many."""
    status: str = await database.pool.execute("DELETE FROM hindsight.audit WHERE at < now() - $1::interval", older_than)
    return int(status.rpartition(" ")[2])
