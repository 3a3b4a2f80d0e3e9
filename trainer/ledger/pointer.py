"""The pointer file: what is promoted, for a server that should not need the database to answer a request.

Postgres has the truth; the file is a copy that is written whole or not at all. ``sync`` makes it agree again after
a crash between the commit and the copy, so every command that looks at promotions calls it first.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from data_bridge.database import Database
from trainer.ledger.releases import Promotion, canary_agents_of, in_state
from trainer.ledger.states import PromotionState


@dataclass(frozen=True, slots=True)
class Canary:
    """The checkpoint that only these agents use."""

    promotion: Promotion
    agents: frozenset[str]


@dataclass(frozen=True, slots=True)
class Pointer:
    """What agents use now. ``serving`` is None while the agents still use the base model."""

    model: str
    serving: Promotion | None
    canary: Canary | None = None

    def for_agent(self, agent_id: str | None) -> Promotion | None:
        """What this agent uses: the canary if it is one of the canary's, otherwise what is serving."""
        if self.canary is not None and agent_id in self.canary.agents:
            return self.canary.promotion
        return self.serving


def pointer_file(home: Path, model: str) -> Path:
    return home / "promoted" / f"{quote(model, safe='')}.json"


def read_pointer(home: Path, model: str) -> Pointer | None:
    """The copy on disk; None if nothing was ever promoted from this home."""
    try:
        return msgspec.json.decode(pointer_file(home, model).read_bytes(), type=Pointer)
    except FileNotFoundError:
        return None


async def read_from_database(database: Database, model: str) -> Pointer:
    """The truth, from one snapshot."""
    async with (
        database.pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        now_serving = await in_state(connection, model, PromotionState.SERVING)
        trial = await in_state(connection, model, PromotionState.CANARY)
        if trial is None:
            return Pointer(model, now_serving)
        agents = await canary_agents_of(connection, trial)
    return Pointer(model, now_serving, Canary(trial, agents))


async def sync(database: Database, home: Path, model: str) -> Pointer:
    """Make the file agree with the database. Two at once end with the newer state, whoever writes last."""
    while True:
        pointer = await read_from_database(database, model)
        _write(pointer_file(home, model), pointer)
        if await read_from_database(database, model) == pointer:
            return pointer


def _write(path: Path, pointer: Pointer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(pointer))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
