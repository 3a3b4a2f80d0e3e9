"""Promote, roll back and settle canaries by the stored evidence: what ``promote.py`` and the console do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData, PromotionRefused
from trainer.config.training import AddressSettings, GateSettings
from trainer.evidence import Interval, Ruling
from trainer.ledger.checkpoints import named_checkpoint, parse_checkpoint_name
from trainer.ledger.clock import clock
from trainer.ledger.evaluations import newest_comparison
from trainer.ledger.releases import Promotion, running_canary, serving
from trainer.promote.canary import CanaryDecision, decide, evidence_of, settle_canary
from trainer.promote.publish import end_canary, finish_canary, publish, roll_back
from trainer.promote.ruling import standing_ruling
from trainer.types import Release, release_of


async def promote_checkpoint(
    database: Database,
    home: Path,
    name: str | None,
    model: str,
    gate: GateSettings,
    addresses: AddressSettings,
    *,
    reason: str | None = None,
    force: bool = False,
    canary: float | None = None,
    lessons: str | None = None,
) -> Promotion:
    """Give a checkpoint (the newest of ``model`` unless named) to all agents, or to a share of them.

    ``lessons`` is the policy that is promoted with it, empty for none; None: the one that the agents use now.

    It decides by the evidence that is stored: ``evaluate.py`` does the evaluation, so this is fast. NotEnoughData if
    there is none against what the agents use now, PromotionRefused if the gate is against it; ``force`` overrides both.
    """
    checkpoint = await named_checkpoint(database, name, model)
    now = await serving(database, checkpoint.model)
    release = release_of(checkpoint, None if now is None else now.release, lessons)
    first = f"evaluate.py {checkpoint.step}{_flag(lessons)}"
    return await promote_release_of(
        database, home, release, now, gate, addresses, first=first, reason=reason, force=force, canary=canary
    )


async def promote_release_of(
    database: Database,
    home: Path,
    release: Release,
    now: Promotion | None,
    gate: GateSettings,
    addresses: AddressSettings,
    *,
    first: str,
    reason: str | None,
    force: bool,
    canary: float | None,
) -> Promotion:
    """Give ``release`` to agents who use ``now``, by the evidence that is stored. ``first`` is the command that makes
    it."""
    used = (release.model, 0, "", "") if now is None else now.release.identity
    if now is not None and release.identity == used:
        raise ConfigurationError(f"The agents already use {release.name}: name another checkpoint.")
    evaluation = await newest_comparison(database.pool, release, used)
    decision = None if evaluation is None else await standing_ruling(database, evaluation, gate)
    if decision is None and not force:
        raise NotEnoughData(
            f"{release.name} has not been compared with what the agents use now (step {used[1]}): run `{first}` first."
        )
    if decision is not None:
        if decision.ruling is not Ruling.PROMOTE and not force:
            raise PromotionRefused(
                f"{release.name} is not promoted ({decision.ruling.value}): {decision.sentence}. "
                "The evidence is stored; --force --reason WHY overrides the gate."
            )
        reason = reason or decision.sentence
    return await publish(
        database,
        home,
        release,
        release.checkpoint.served_at(addresses),
        reason=reason or "",
        evaluation=evaluation,
        forced=force,
        canary=canary,
    )


def _flag(lessons: str | None) -> str:
    return "" if lessons is None else f" --lessons {lessons or 'off'}"


async def go_back(
    database: Database, home: Path, name: str | None, model: str, addresses: AddressSettings, *, reason: str
) -> Promotion:
    """Let agents use an earlier checkpoint, the previous one unless named; a running canary is what ends first."""
    step = None
    if name is None and await running_canary(database, model) is not None:
        return await end_canary(database, home, model, outcome=reason)
    if name is not None:
        model, step = parse_checkpoint_name(name, model)
    return await roll_back(database, home, model, lambda one: one.served_at(addresses), step=step, reason=reason)


async def end_trial(database: Database, home: Path, model: str, *, reason: str) -> Promotion:
    """Take the running canary back, whatever its results. ConfigurationError if none is running."""
    return await end_canary(database, home, model, outcome=reason)


async def finish_trial(
    database: Database, home: Path, model: str, until: str | None, *, force: bool, reason: str
) -> Promotion | CanaryDecision:
    """Settle the running canary by its results; with ``force`` give it to all agents. ConfigurationError if none is."""
    if force:
        return await finish_canary(database, home, model, outcome=reason)
    decision = await settle_canary(database, home, model, now=await clock(database, until))
    if decision is None:
        raise ConfigurationError(f"No canary of {model!r} is running: start one with --canary SHARE.")
    return decision


@dataclass(frozen=True, slots=True)
class CanaryProgress:
    """How a running canary does so far. Looking at it changes nothing."""

    name: str
    share: float
    windows: int
    ruling: str
    reason: str
    difference: Interval | None


async def canary_progress(database: Database, model: str, until: str | None = None) -> CanaryProgress | None:
    trial = await running_canary(database, model)
    if trial is None:
        return None
    evidence = await evidence_of(database, trial, await clock(database, until))
    decision = decide(evidence)
    return CanaryProgress(
        trial.release.name,
        trial.canary_share or 0.0,
        evidence.windows,
        decision.ruling.value,
        decision.reason,
        decision.difference,
    )
