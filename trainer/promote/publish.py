"""Gives a release to the agents or withdraws it: each in one transaction.

Even if this process dies, a reader sees either the old promotion or the new one, never two and never none: the pointer
row, the game's ``trained_models`` and the canary's agents change together. Training does not have to stop for it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData, PromotionRefused
from data_bridge.game_writes import OfferedModel, archive, deploy, newest_window, offer_to_canary, recent_agents
from trainer.abilities import abilities_of
from trainer.evidence import Evaluation, Role
from trainer.ledger import releases
from trainer.ledger.checkpoints import checkpoint_at
from trainer.ledger.clock import clock
from trainer.ledger.releases import Promotion, sync
from trainer.ledger.states import PromotionKind, PromotionState
from trainer.types import Checkpoint, Release, Serving

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[Any]

logger = logging.getLogger(__name__)


ServingOf = Callable[[Checkpoint], Serving]
"""Where agents reach a checkpoint, according to a command's settings."""


class IncumbentChanged(PromotionRefused):
    """The evidence is about a different incumbent than the one the agents use now."""


class CanaryChanged(PromotionRefused):
    """The decision is about a canary that somebody else has settled or replaced by now."""


async def publish(
    database: Database,
    home: Path,
    release: Release,
    at: Serving,
    *,
    reason: str,
    evaluation: Evaluation | None = None,
    forced: bool = False,
    canary: float | None = None,
) -> Promotion:
    """Let all agents, or a ``canary`` share of them, use ``release``.

    IncumbentChanged if ``evaluation`` compared it with anything but what the agents use now: an evaluation takes
    minutes, during which somebody may have rolled back. ``forced`` skips this check.
    """
    checkpoint, model = release.checkpoint, release.model
    now = await clock(database, None) if canary is not None else None
    async with releases.one_promotion_at_a_time(database) as connection:
        _check_files(checkpoint)
        used = await releases.in_state(connection, model, PromotionState.SERVING)
        if used is None or used.release.checkpoint != checkpoint:  # else prompts and lessons, by the agent's id
            check_canary(checkpoint.backend, canary)
        if evaluation is not None and not forced:
            await _check_incumbent(connection, evaluation)
        if canary is None:
            await releases.end_promotion(connection, model, PromotionState.SERVING, PromotionState.SUPERSEDED)
        replaced = await releases.end_promotion(connection, model, PromotionState.CANARY, PromotionState.SUPERSEDED)
        if replaced is not None:
            await archive(connection, replaced.release.name)
        state = PromotionState.SERVING if canary is None else PromotionState.CANARY
        promotion = await releases.insert_promotion(
            connection,
            release,
            at.base_url,
            at.model,
            kind=PromotionKind.PROMOTION,
            state=state,
            reason=reason,
            evaluation_id=evaluation.evaluation_id if evaluation is not None else None,
            forced=forced,
            canary=canary,
        )
        if canary is None or now is None:
            await deploy(connection, await _offered(connection, promotion, evaluation))
        else:
            promotion = await _mark_agents(connection, promotion, canary, now)
            await offer_to_canary(connection, await _offered(connection, promotion, evaluation))
    logger.info("%s is %s at %s: %s", release.name, state, at.base_url, reason)
    await sync(database, home, model)
    return promotion


async def finish_canary(
    database: Database, home: Path, model: str, *, outcome: str, trial: Promotion | None = None
) -> Promotion:
    """Give the running canary to all agents. ConfigurationError if none is running, CanaryChanged if not ``trial``."""
    async with releases.one_promotion_at_a_time(database) as connection:
        trial = await _need_canary(connection, model, trial)
        await releases.end_promotion(connection, model, PromotionState.SERVING, PromotionState.SUPERSEDED)
        finished = await releases.move_promotion(connection, trial, PromotionState.SERVING, outcome)
        await deploy(connection, await _offered(connection, finished, None))
    logger.info("%s now serves all agents: %s", finished.release.name, outcome)
    await sync(database, home, model)
    return finished


async def end_canary(
    database: Database, home: Path, model: str, *, outcome: str, trial: Promotion | None = None
) -> Promotion:
    """Take the running canary away from its agents; they use what all other agents use again. Errors as above."""
    async with releases.one_promotion_at_a_time(database) as connection:
        trial = await _need_canary(connection, model, trial)
        ended = await releases.move_promotion(connection, trial, PromotionState.ROLLED_BACK, outcome)
        await archive(connection, ended.release.name)
    logger.info("the canary of %s is rolled back: %s", ended.release.name, outcome)
    await sync(database, home, model)
    return ended


async def roll_back(
    database: Database, home: Path, model: str, serving_of: ServingOf, *, step: int | None, reason: str
) -> Promotion:
    """Let all agents use an earlier checkpoint: ``step``, or the previously promoted one. A running canary ends too."""
    async with releases.one_promotion_at_a_time(database) as connection:
        current = await releases.in_state(connection, model, PromotionState.SERVING)
        target = await _rollback_target(connection, model, current, step)
        _check_files(target.checkpoint)
        at = serving_of(target.checkpoint)
        await releases.end_promotion(connection, model, PromotionState.CANARY, PromotionState.ROLLED_BACK, reason)
        await releases.end_promotion(connection, model, PromotionState.SERVING, PromotionState.ROLLED_BACK, reason)
        promotion = await releases.insert_promotion(
            connection,
            target,
            at.base_url,
            at.model,
            kind=PromotionKind.ROLLBACK,
            state=PromotionState.SERVING,
            reason=reason,
        )
        await deploy(connection, await _offered(connection, promotion, None))
    logger.info("rolled back to %s: %s", target.name, reason)
    await sync(database, home, model)
    return promotion


async def _need_canary(connection: Connection, model: str, expected: Promotion | None) -> Promotion:
    trial = await releases.in_state(connection, model, PromotionState.CANARY)
    if expected is not None and (trial is None or trial.promotion_id != expected.promotion_id):
        raise CanaryChanged(f"The canary of {expected.checkpoint.name} has been settled or replaced.")
    if trial is None:
        raise ConfigurationError(f"No canary of {model!r} is running: start one with --canary SHARE.")
    return trial


async def _rollback_target(connection: Connection, model: str, current: Promotion | None, step: int | None) -> Release:
    if current is None:
        raise ConfigurationError(f"No checkpoint of {model!r} has been promoted yet: there is nothing to roll back.")
    if step is None:
        before = await releases.used_before(connection, current.release)
        if before is not None:
            return before.release
        step = 0
    target = await checkpoint_at(connection, model, step)
    if step == current.checkpoint.step:
        plain = target.as_release()
        if plain.identity == current.release.identity:
            raise ConfigurationError(f"The agents already use {current.checkpoint.name}: name another step.")
        return plain  # the same weights without prompts and lessons of ours
    if target.step > await releases.newest_used(connection, model):
        raise ConfigurationError(
            f"{target.name} is newer than anything the agents used, so it is not a rollback: "
            f"promote it through the gate with `promote.py {target.step}`."
        )
    return target.as_release()


async def _check_incumbent(connection: Connection, evaluation: Evaluation) -> None:
    now = await releases.in_state(connection, evaluation.model, PromotionState.SERVING)
    used = now.release.identity if now is not None else (evaluation.model, 0, "", "")
    if evaluation.compared_with != used:
        name = now.release.name if now is not None else f"{evaluation.model}@step0"
        raise IncumbentChanged(
            f"The incumbent changed during the evaluation and is {name} now: "
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
    """ConfigurationError if nothing can serve a share of the agents a different checkpoint."""
    if share is not None and not abilities_of(backend).runs_in_engine:
        raise ConfigurationError(
            "--canary needs `serve.py`, which distinguishes agents and serves CPU checkpoints; an endpoint of the "
            f"{backend} backend gives every agent the same checkpoint: promote without --canary."
        )


async def _mark_agents(connection: Connection, promotion: Promotion, share: float, now: datetime) -> Promotion:
    """Nobody can know the salt beforehand, so nobody can choose an id that is, or is not, a canary's."""
    agents = canary_agents(await recent_agents(connection, now), share, salt=secrets.token_hex(16))
    return await releases.mark_canary_agents(connection, promotion, agents, await newest_window(connection, now))


def canary_agents(agents: list[str], share: float, *, salt: str) -> list[str]:
    """A ``share`` of the agents, at least one and never all, chosen by a hash: different agents for every canary."""
    if len(agents) < 2:
        raise NotEnoughData(
            "A canary needs at least two agents that played in the last week: promote without --canary."
        )
    wanted = min(len(agents) - 1, max(1, round(share * len(agents))))
    return sorted(agents, key=lambda agent: hashlib.blake2b(f"{salt}:{agent}".encode()).digest())[:wanted]


# The game's table of models


async def _offered(connection: Connection, promotion: Promotion, evaluation: Evaluation | None) -> OfferedModel:
    """The release as the game's table shows it to agents."""
    checkpoint = promotion.checkpoint
    batch_id, mean_reward = await releases.trained_from(connection, checkpoint)
    metrics: dict[str, Any] = {
        "baseUrl": promotion.base_url,
        "servedModel": promotion.served_model,
        "promotionId": promotion.promotion_id,
        "canaryShare": promotion.canary_share,
    }
    candidate = evaluation.of(Role.CANDIDATE) if evaluation is not None else None
    if evaluation is not None and candidate is not None:
        gain = evaluation.score_difference
        metrics |= {
            "judge": evaluation.judge.judge,
            "windows": gain.windows,
            "gain": gain.mean,
            "gainLow": gain.low,
            "gainHigh": gain.high,
            "errorRate": candidate.error_rate.mean,
            "pnl": candidate.pnl.mean if candidate.pnl is not None else None,
        }
    if promotion.prompt_version:
        metrics["promptVersion"] = promotion.prompt_version
    if promotion.lessons_policy:
        metrics["lessonsPolicy"] = promotion.lessons_policy
    return OfferedModel(
        promotion.release.name,
        str(checkpoint.step),
        checkpoint.base_model,
        batch_id,
        checkpoint.location,
        candidate.score.mean if candidate is not None else None,
        mean_reward,
        metrics,
    )
