"""Keys with which agents, teams and the game send rows: made once, shown once, stored as a digest."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from data_bridge.database import Database

IngestKind = Literal["agent", "team", "game"]


@dataclass(frozen=True, slots=True)
class IngestKey:
    """A key, without the key."""

    key_id: str
    kind: str
    owner: str
    """The agent; or the team, whose name begins its agents' ids; or the game's name."""
    created_at: datetime
    revoked_at: datetime | None


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def make_ingest_key(database: Database, kind: IngestKind, owner: str) -> tuple[IngestKey, str]:
    """A new key and its row; the key cannot be had again."""
    key = f"hsi_{secrets.token_urlsafe(32)}"
    row = await database.pool.fetchrow(
        "INSERT INTO hindsight.ingest_keys (key_id, digest, kind, owner) VALUES ($1, $2, $3, $4)"
        " RETURNING key_id, kind, owner, created_at, revoked_at",
        *(secrets.token_hex(8), digest_of(key), kind, owner),
    )
    assert row is not None
    return IngestKey(**row), key


async def ingest_key_of(database: Database, key: str) -> IngestKey | None:
    """Whose key this is; None if it is nobody's, or was revoked."""
    row = await database.pool.fetchrow(
        "SELECT key_id, kind, owner, created_at, revoked_at FROM hindsight.ingest_keys"
        " WHERE digest = $1 AND revoked_at IS NULL",
        digest_of(key),
    )
    return None if row is None else IngestKey(**row)


async def list_ingest_keys(database: Database) -> list[IngestKey]:
    rows = await database.pool.fetch(
        "SELECT key_id, kind, owner, created_at, revoked_at FROM hindsight.ingest_keys"
        " ORDER BY created_at DESC LIMIT 500"
    )
    return [IngestKey(**row) for row in rows]


async def revoke_ingest_key(database: Database, key_id: str) -> IngestKey | None:
    """End a key at once; None if there is no such key."""
    row = await database.pool.fetchrow(
        "UPDATE hindsight.ingest_keys SET revoked_at = coalesce(revoked_at, now()) WHERE key_id = $1"
        " RETURNING key_id, kind, owner, created_at, revoked_at",
        key_id,
    )
    return None if row is None else IngestKey(**row)
