"""Gives a checkpoint to the agents, or takes it away again: each in one transaction.

Whoever looks, whenever this process dies, sees the promotion before or the one after, never two and never none:
the pointer row, the game's ``trained_models`` and the canary's agents change together. Training need not stop for it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData, PromotionRefused
from data_bridge.redaction import redact
from trainer.evidence import Evaluation
from trainer.inference.serving import Serving
from trainer.ledger.pointer import sync
from trainer.ledger.releases import (
    PROMOTION_TRANSITIONS,
    Promotion,
    PromotionKind,
    PromotionState,
    checkpoint_at,
    in_state,
    promotion_of,
)
from trainer.ledger.states import sources_of
from trainer.promote.deployed_models import archive, deploy, offer_to_canary
from trainer.types import Checkpoint, abilities_of

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[Any]

logger = logging.getLogger(__name__)


ServingOf = Callable[[Checkpoint], Serving]
"""Where agents reach a checkpoint: `backends.serving` with a command's settings."""


class IncumbentChanged(PromotionRefused):
    """The evidence is about another incumbent than the one that the agents use by now."""


async def publish(
    database: Database,
    home: Path,
    checkpoint: Checkpoint,
    at: Serving,
    *,
    reason: str,
    evaluation: Evaluation | None = None,
    forced: bool = False,
    canary: float | None = None,
) -> Promotion:
    """Let all agents, or a ``canary`` share of them, use ``checkpoint``.

    IncumbentChanged if ``evaluation`` compared it with something else than the agents use at this moment: evaluating
    takes minutes, in which somebody may have rolled back. Only ``forced`` does not ask.
    """
    async with one_promotion_at_a_time(database) as connection:
        _check_files(checkpoint)
        check_canary(checkpoint.backend, canary)
        if evaluation is not None and not forced:
            await _check_incumbent(connection, evaluation)
        if canary is None:
            await _end(connection, checkpoint.model, PromotionState.SERVING, PromotionState.SUPERSEDED)
        replaced = await _end(connection, checkpoint.model, PromotionState.CANARY, PromotionState.SUPERSEDED)
        if replaced is not None:
            await archive(connection, replaced)
        state = PromotionState.SERVING if canary is None else PromotionState.CANARY
        promotion = await _insert(
            connection,
            checkpoint,
            at,
            kind=PromotionKind.PROMOTION,
            state=state,
            reason=reason,
            evaluation=evaluation,
            forced=forced,
            canary=canary,
        )
        if canary is None:
            await deploy(connection, promotion, evaluation)
        else:
            promotion = await _mark_agents(connection, promotion, canary)
            await offer_to_canary(connection, promotion, evaluation)
    logger.info("%s is %s at %s: %s", checkpoint.name, state, at.base_url, reason)
    await sync(database, home, checkpoint.model)
    return promotion


async def finish_canary(database: Database, home: Path, model: str, *, outcome: str) -> Promotion:
    """Give the running canary to all agents. ConfigurationError if none is running."""
    async with one_promotion_at_a_time(database) as connection:
        trial = await _need_canary(connection, model)
        await _end(connection, model, PromotionState.SERVING, PromotionState.SUPERSEDED)
        finished = await _move(connection, trial, PromotionState.SERVING, outcome)
        await deploy(connection, finished, None)
    logger.info("%s now serves all agents: %s", finished.checkpoint.name, outcome)
    await sync(database, home, model)
    return finished


async def end_canary(database: Database, home: Path, model: str, *, outcome: str) -> Promotion:
    """Take the running canary away from its agents; they use what all the others use again."""
    async with one_promotion_at_a_time(database) as connection:
        trial = await _need_canary(connection, model)
        ended = await _move(connection, trial, PromotionState.ROLLED_BACK, outcome)
        await archive(connection, ended)
    logger.info("the canary of %s is rolled back: %s", ended.checkpoint.name, outcome)
    await sync(database, home, model)
    return ended


async def roll_back(
    database: Database, home: Path, model: str, serving_of: ServingOf, *, step: int | None, reason: str
) -> Promotion:
    """Let all agents use an earlier checkpoint: ``step``, or the one promoted before. A running canary ends too."""
    async with one_promotion_at_a_time(database) as connection:
        current = await in_state(connection, model, PromotionState.SERVING)
        target = await _rollback_target(connection, model, current, step)
        _check_files(target)
        await _end(connection, model, PromotionState.CANARY, PromotionState.ROLLED_BACK, reason)
        await _end(connection, model, PromotionState.SERVING, PromotionState.ROLLED_BACK, reason)
        promotion = await _insert(
            connection,
            target,
            serving_of(target),
            kind=PromotionKind.ROLLBACK,
            state=PromotionState.SERVING,
            reason=reason,
        )
        await deploy(connection, promotion, None)
    logger.info("rolled back to %s: %s", target.name, reason)
    await sync(database, home, model)
    return promotion


# One transaction


@asynccontextmanager
async def one_promotion_at_a_time(database: Database) -> AsyncIterator[Connection]:
    """One transaction, alone in the whole database: ``trained_models`` has one deployed row for all models."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtext('hindsight.promotions'))")
        yield connection


async def _insert(
    connection: Connection,
    checkpoint: Checkpoint,
    at: Serving,
    *,
    kind: PromotionKind,
    state: PromotionState,
    reason: str,
    evaluation: Evaluation | None = None,
    forced: bool = False,
    canary: float | None = None,
) -> Promotion:
    row = await connection.fetchrow(
        "INSERT INTO hindsight.promotions (model, step, kind, state, forced, reason, evaluation_id, base_model,"
        " backend, location, base_url, served_model, canary_share, serving_since)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, CASE WHEN $4 = 'serving' THEN now() END)"
        " RETURNING *",
        checkpoint.model,
        checkpoint.step,
        kind.value,
        state.value,
        forced,
        redact(reason),
        evaluation.evaluation_id if evaluation is not None else None,
        checkpoint.base_model,
        checkpoint.backend,
        checkpoint.location,
        at.base_url,
        at.model,
        canary,
    )
    assert row is not None
    return promotion_of(row)


async def _end(
    connection: Connection, model: str, state: PromotionState, then: PromotionState, outcome: str | None = None
) -> Promotion | None:
    """Move the promotion in ``state`` on to ``then``, if there is one."""
    current = await in_state(connection, model, state)
    return None if current is None else await _move(connection, current, then, outcome)


async def _move(
    connection: Connection, promotion: Promotion, then: PromotionState, outcome: str | None = None
) -> Promotion:
    row = await connection.fetchrow(
        "UPDATE hindsight.promotions SET state = $2, outcome = coalesce($3, outcome),"
        " serving_since = CASE WHEN $2 = 'serving' THEN now() ELSE serving_since END,"
        " ended_at = CASE WHEN $2 = 'serving' THEN NULL ELSE now() END"
        " WHERE promotion_id = $1 AND state = ANY($4) RETURNING *",
        *(promotion.promotion_id, then.value, None if outcome is None else redact(outcome)),
        sources_of(then, PROMOTION_TRANSITIONS),
    )
    if row is None:
        raise ValueError(f"a promotion cannot go from {promotion.state} to {then}")
    return promotion_of(row)


async def _need_canary(connection: Connection, model: str) -> Promotion:
    trial = await in_state(connection, model, PromotionState.CANARY)
    if trial is None:
        raise ConfigurationError(f"No canary of {model!r} is running: start one with --canary SHARE.")
    return trial


# By history, not by number: a lower step may have been promoted after a higher one. A step that was taken away since
# it last served is no way back.
_USED_BEFORE = """
SELECT step FROM hindsight.promotions p WHERE model = $1 AND step <> $2 AND serving_since IS NOT NULL
    AND NOT EXISTS (SELECT FROM hindsight.promotions l WHERE l.model = p.model AND l.step = p.step
                    AND l.promotion_id >= p.promotion_id AND l.state = 'rolled_back')
ORDER BY promotion_id DESC LIMIT 1
"""


async def _rollback_target(
    connection: Connection, model: str, current: Promotion | None, step: int | None
) -> Checkpoint:
    if current is None:
        raise ConfigurationError(f"Nothing of {model!r} was promoted yet: there is nothing to roll back.")
    now = current.checkpoint.step
    if step is None:
        step = await connection.fetchval(_USED_BEFORE, model, now) or 0
    if step == now:
        raise ConfigurationError(f"{current.checkpoint.name} is what the agents use already: name another step.")
    target = await checkpoint_at(connection, model, step)
    newest_used = await connection.fetchval(
        "SELECT max(step) FROM hindsight.promotions WHERE model = $1 AND serving_since IS NOT NULL", model
    )
    if target.step > newest_used:
        raise ConfigurationError(
            f"{target.name} is newer than anything the agents used, so it is not a way back: "
            f"`promote.py {target.step}` asks the gate."
        )
    return target


async def _check_incumbent(connection: Connection, evaluation: Evaluation) -> None:
    now = await in_state(connection, evaluation.model, PromotionState.SERVING)
    used = evaluation.model, now.checkpoint.step if now is not None else 0
    if evaluation.compared_with != used:
        model, step = used
        raise IncumbentChanged(
            f"What the agents use changed meanwhile, it is {model}@step{step} now: "
            f"evaluate {evaluation.candidate.name} again."
        )


def _check_files(checkpoint: Checkpoint) -> None:
    if checkpoint.abilities.runs_in_engine and checkpoint.step > 0 and not Path(checkpoint.location).is_dir():
        raise ConfigurationError(
            f"The files of {checkpoint.name} are not in {checkpoint.location}: choose a step that --list shows and "
            "that is still on disk, or run this on the host that trained it."
        )


# The canary's agents


def check_canary(backend: str, share: float | None) -> None:
    """ConfigurationError if nobody could give a share of the agents something else than the rest."""
    if share is not None and not abilities_of(backend).runs_in_engine:
        raise ConfigurationError(
            "--canary needs `serve.py`, which tells agents apart and serves CPU checkpoints; an endpoint of the "
            f"{backend} backend gives every agent the same: promote without --canary."
        )


async def _mark_agents(connection: Connection, promotion: Promotion, share: float) -> Promotion:
    rows = await connection.fetch(
        'SELECT DISTINCT "agentId" AS agent_id FROM trajectories'
        ' WHERE "startTime" > (SELECT max("startTime") FROM trajectories) - interval \'7 days\''
    )
    agents = canary_agents([row["agent_id"] for row in rows], share, salt=str(promotion.promotion_id))
    await connection.execute(
        "INSERT INTO hindsight.canary_agents (promotion_id, agent_id) SELECT $1, unnest($2::text[])",
        *(promotion.promotion_id, agents),
    )
    row = await connection.fetchrow(
        "UPDATE hindsight.promotions SET canary_after = (SELECT left(\"windowId\", 13) || ':00' FROM trajectories"
        ' WHERE "windowId" ~ \'^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\' ORDER BY "windowId" DESC LIMIT 1)'
        " WHERE promotion_id = $1 RETURNING *",
        promotion.promotion_id,
    )
    assert row is not None
    return promotion_of(row)


def canary_agents(agents: list[str], share: float, *, salt: str) -> list[str]:
    """A ``share`` of the agents, at least one and never all, by a hash: other agents for every canary."""
    if len(agents) < 2:
        raise NotEnoughData(
            "A canary needs at least two agents that played in the last week: promote without --canary."
        )
    wanted = min(len(agents) - 1, max(1, round(share * len(agents))))
    return sorted(agents, key=lambda agent: hashlib.blake2b(f"{salt}:{agent}".encode()).digest())[:wanted]
