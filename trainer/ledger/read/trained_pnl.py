"""The P&L of trained trajectories in their windows, with their scores: a sample, from the game's table."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

import asyncpg

from data_bridge.database import Database
from data_bridge.reader import read_pnl
from trainer.ledger.read.types import ScoredPnl

logger = logging.getLogger(__name__)

SAMPLE = 400
_MAX_BYTES = 1_000_000  # of JSON; a larger row is not worth reading for one dot
_NOT_READABLE = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.InsufficientPrivilegeError)


def sample(trajectory_ids: Mapping[str, float], size: int = SAMPLE) -> list[str]:
    """A reproducible sample of ``size`` of them, unbiased by order."""
    return sorted(trajectory_ids, key=lambda one: hashlib.blake2b(one.encode(), digest_size=8).digest())[:size]


async def scored_pnl(database: Database, scores: Mapping[str, float]) -> tuple[ScoredPnl, ...]:
    """Score and P&L of a sample of ``scores``; without those whose P&L is unknown or whose row is gone.

    The ledger outlives the game's rows, and its reader may lack access to them: then there is nothing to show.
    """
    chosen = sample(scores)
    try:
        found = await read_pnl(database, chosen, max_bytes=_MAX_BYTES)
    except _NOT_READABLE as error:
        logger.info("the report has no P&L of trained trajectories: %s", error)
        return ()
    return tuple(ScoredPnl(one, scores[one], found[one]) for one in chosen if one in found)
