"""Releases: what agents use and could use, on which evidence; promote, roll back, canaries, each with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.console.operations import Incoming, Operation
from trainer.console.services import Services, audited
from trainer.console.training_api import ModelQuery
from trainer.ledger.checkpoints import list_checkpoints, parse_checkpoint_name
from trainer.ledger.releases import Promotion, history

RELEASE = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63}@)?(step)?[0-9]{1,9}$"
REASON = Field(
    min_length=1, max_length=500, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", description="Why; kept with the release."
)


@dataclass(frozen=True, slots=True)
class ReleaseEntry:
    """A checkpoint, with its state and evidence."""

    name: str
    step: int
    parent: str
    """What it was trained from; step 0 is the base model."""
    state: str
    """``serving``, ``canary``, ``superseded``, ``rolled_back``; without a promotion ``refused``, ``undecided``,
    ``evaluated``, ``new``, or ``absent`` if its files are not on this machine."""
    run_id: str
    trained_at: datetime
    windows: int
    mean_score: float | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class PromotionEntry:
    """One deed on releases, in the order in which they happened."""

    promotion_id: int
    name: str
    step: int
    kind: str
    state: str
    forced: bool
    reason: str
    outcome: str | None
    canary_share: float | None
    created_at: datetime
    serving_since: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Releases:
    model: str
    serving: str | None
    canary: str | None
    entries: list[ReleaseEntry]
    history: list[PromotionEntry]


def promotion_entry(one: Promotion) -> PromotionEntry:
    return PromotionEntry(
        one.promotion_id,
        one.release.name,
        one.checkpoint.step,
        one.kind.value,
        one.state.value,
        one.forced,
        one.reason,
        one.outcome,
        one.canary_share,
        one.created_at,
        one.serving_since,
        one.ended_at,
    )


async def releases_of(services: Services, model: str) -> Releases:
    past = [promotion_entry(one) for one in await history(services.database, model)]
    used = {one.state: one.name for one in past if one.state in ("serving", "canary")}
    listed = await list_checkpoints(services.database, model)
    return Releases(
        model,
        used.get("serving"),
        used.get("canary"),
        [
            ReleaseEntry(
                one.checkpoint.name,
                one.checkpoint.step,
                f"{one.checkpoint.model}@step{one.parent_step}",
                one.state,
                one.run_id,
                one.trained_at,
                one.windows,
                one.mean_score,
                one.gain,
                one.gain_low,
                one.gain_high,
                one.reason,
            )
            for one in listed
        ],
        past,
    )


async def get_releases(asked: Incoming) -> Releases:
    return await releases_of(asked.services, asked.query.model or asked.services.model)


class PromoteBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = REASON
    force: bool = Field(default=False, description="Against the gate, or without evidence; recorded.")


class RollbackBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = REASON


class CanaryBody(BaseModel):
    """``start`` gives it to a share of the agents, ``finish`` settles it by its results, ``end`` takes it back."""

    model_config = ConfigDict(extra="forbid")

    reason: str = REASON
    action: Literal["start", "finish", "end"] = "start"
    share: float = Field(default=0.1, gt=0, lt=1, description="Of the agents, for `start`.")
    force: bool = Field(default=False, description="`start` against the gate, `finish` whatever the results; recorded.")


@dataclass(frozen=True, slots=True)
class ReleaseDeed:
    """What came of it."""

    release: str
    state: str
    reason: str
    forced: bool


async def promote(services: Services, name: str, *, reason: str, force: bool, share: float | None = None) -> Promotion:
    from trainer.run.promotion import promote_checkpoint

    return await promote_checkpoint(
        services.database,
        services.home,
        name,
        services.model,
        services.gate,
        services.addresses,
        reason=reason,
        force=force,
        canary=share,
    )


async def roll_back_to(services: Services, name: str | None, model: str, *, reason: str) -> Promotion:
    from trainer.run.promotion import go_back

    return await go_back(services.database, services.home, name, model, services.addresses, reason=reason)


async def settle(services: Services, model: str, *, reason: str, force: bool) -> ReleaseDeed:
    from trainer.run.promotion import finish_trial

    settled = await finish_trial(services.database, services.home, model, None, force=force, reason=reason)
    if isinstance(settled, Promotion):
        return deed_of(settled)
    return ReleaseDeed(model, settled.ruling.value, settled.reason, forced=False)


async def end(services: Services, model: str, *, reason: str) -> ReleaseDeed:
    from trainer.run.promotion import end_trial

    return deed_of(await end_trial(services.database, services.home, model, reason=reason))


def deed_of(one: Promotion) -> ReleaseDeed:
    return ReleaseDeed(one.checkpoint.name, one.state.value, one.outcome or one.reason, one.forced)


async def promote_release(asked: Incoming) -> ReleaseDeed:
    name, body = asked.part("release"), asked.body
    deed = "promote by force" if body.force else "promote"
    async with audited(asked.services, asked.caller, asked.request, deed, name, body.reason):
        return deed_of(await promote(asked.services, name, reason=body.reason, force=body.force))


async def roll_back_release(asked: Incoming) -> ReleaseDeed:
    name, body = asked.part("release"), asked.body
    async with audited(asked.services, asked.caller, asked.request, "roll back", name, body.reason):
        return deed_of(await roll_back_to(asked.services, name, asked.services.model, reason=body.reason))


async def canary_release(asked: Incoming) -> ReleaseDeed:
    name, body, services = asked.part("release"), asked.body, asked.services
    model, _ = parse_checkpoint_name(name, services.model)
    deed = f"{body.action} canary{' by force' if body.force else ''}"
    async with audited(services, asked.caller, asked.request, deed, name, body.reason):
        if body.action == "start":
            return deed_of(await promote(services, name, reason=body.reason, force=body.force, share=body.share))
        if body.action == "finish":
            return await settle(services, model, reason=body.reason, force=body.force)
        return await end(services, model, reason=body.reason)


_PART = {"release": RELEASE}

OPERATIONS = (
    Operation("GET", "/releases", "Checkpoints with state and evidence", get_releases, Releases, query=ModelQuery),
    Operation(
        "POST",
        "/releases/{release}/promote",
        "Give a checkpoint to all agents, if the gate's evidence allows it",
        promote_release,
        ReleaseDeed,
        body=PromoteBody,
        acts=True,
        problems=(409,),
        parts=_PART,
    ),
    Operation(
        "POST",
        "/releases/{release}/rollback",
        "Let all agents use this earlier checkpoint; 0 is the base model",
        roll_back_release,
        ReleaseDeed,
        body=RollbackBody,
        acts=True,
        problems=(409,),
        parts=_PART,
    ),
    Operation(
        "POST",
        "/releases/{release}/canary",
        "Start, settle or take back a canary",
        canary_release,
        ReleaseDeed,
        body=CanaryBody,
        acts=True,
        problems=(409,),
        parts=_PART,
    ),
)
