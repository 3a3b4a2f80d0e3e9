"""The prompt policy over HTTP: ask it, tell it what came of it, let it learn, save and load.

``ALONE`` are the calls as ``prompts.py serve`` has them; the console has the same ones under ``/prompts/policy``.
"""

from __future__ import annotations

import math
import struct
import uuid
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.responses import Response

from data_bridge.database import Database
from data_bridge.errors import BackendError
from trainer.console.operations import TEXT, IncomingTo, Operation
from trainer.console.policy_bodies import (
    ACTIONS,
    DIMENSIONS,
    EmbeddedState,
    Embedding,
    Mask,
    Number,
    SelectBody,
    StateBody,
    WrittenState,
)
from trainer.console.problems import Refused
from trainer.console.services import audited
from trainer.ledger.policy import NameTaken, OtherExperience, PolicyLosses, SentExperience, UnknownVersion
from trainer.run.policy_desk import PolicyDesk, PromptState

T = TypeVar("T")


class HasPolicy(Protocol):
    """What these calls work with: the console's services, or those of the policy alone."""

    @property
    def database(self) -> Database: ...

    @property
    def policy(self) -> PolicyDesk: ...


Incoming = IncomingTo[HasPolicy]


@dataclass(frozen=True, slots=True)
class SelectedAction:
    action: int
    name: str
    log_prob: float
    value: float
    probabilities: list[float]
    action_mask: list[bool]
    version: int
    embedding: list[float] | None
    """Of a prompt that came as text: what its experience is stored with."""


async def _state(desk: PolicyDesk, state: EmbeddedState | WrittenState) -> PromptState:
    if isinstance(state, EmbeddedState):
        return PromptState(state.embedding, state.action_mask or (True,) * len(ACTIONS))
    try:
        return await desk.state_of(state.prompt, state.action_mask)
    except BackendError as error:
        raise Refused(503, str(error), headers={"Retry-After": "5"}) from error


def _given_back(state: EmbeddedState | WrittenState, asked: PromptState) -> list[float] | None:
    return list(asked.embedding) if isinstance(state, WrittenState) else None


async def select_action(asked: Incoming) -> SelectedAction:
    body, desk = asked.body.root, asked.services.policy
    state = await _state(desk, body)
    version, found = await desk.select(state, deterministic=body.deterministic, seed=body.seed)
    return SelectedAction(
        found.action,
        found.name,
        found.log_prob,
        found.value,
        list(found.probabilities),
        list(state.mask),
        version,
        _given_back(body, state),
    )


@dataclass(frozen=True, slots=True)
class Distribution:
    names: list[str]
    probabilities: list[float]
    entropy: float
    value: float
    action_mask: list[bool]
    version: int
    embedding: list[float] | None


async def get_distribution(asked: Incoming) -> Distribution:
    body, desk = asked.body.root, asked.services.policy
    state = await _state(desk, body)
    version, found = await desk.select(state, deterministic=True, seed=None)
    entropy = -sum(one * math.log(one) for one in found.probabilities if one > 0)
    shown = (list(ACTIONS), list(found.probabilities), entropy, found.value, list(state.mask))
    return Distribution(*shown, version, _given_back(body, state))


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class ExperienceBody(BaseModel):
    """What a mutation was worth: the judged score of the prompt after it minus that of the prompt before it."""

    model_config = ConfigDict(extra="forbid")

    embedding: Embedding
    action_mask: Mask | None = Field(default=None, description="Which actions were allowed; unset: all.")
    action: int = Field(ge=0, lt=len(ACTIONS))
    reward: Number
    done: bool = Field(default=True, description="Whether the episode ended with it.")
    version: int = Field(ge=1, lt=2**31, description="Of the policy that acted, as /select_action answered it.")
    experience_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        pattern=TEXT,
        description="The same id twice is stored once: for retries.",
    )
    episode: str | None = Field(
        default=None, min_length=1, max_length=200, pattern=TEXT, description="Unset: an episode of its own."
    )
    step: int = Field(default=0, ge=0, lt=1000, description="Its place in the episode.")


@dataclass(frozen=True, slots=True)
class StoredExperience:
    experience_id: str
    stored: bool
    usable: bool
    version: int
    waiting: int
    needed: int


async def store_experience(asked: Incoming) -> Response:
    body: ExperienceBody = asked.body
    mask = body.action_mask or (True,) * len(ACTIONS)
    if not mask[body.action]:
        raise Refused(409, f"action: the mask does not allow {ACTIONS[body.action]}.", field="action")
    name = body.experience_id or uuid.uuid4().hex
    sent = SentExperience(
        name,
        body.version,
        body.episode or f"alone {name}",
        body.step,
        struct.pack(f"<{DIMENSIONS}f", *body.embedding),
        mask,
        body.action,
        body.reward,
        body.done,
    )
    try:
        kept, buffer = await asked.services.policy.store(sent)
    except UnknownVersion as error:
        raise Refused(404, str(error), field="version") from None
    except OtherExperience as error:
        raise Refused(409, str(error), field="experience_id") from None
    stored = StoredExperience(name, kept.is_new, kept.is_usable, buffer.version, buffer.waiting, buffer.needed)
    return _answer(stored, 201 if kept.is_new else 200)


def _answer(said: object, status: int) -> Response:
    return Response(TypeAdapter(type(said)).dump_json(said), status, media_type="application/json")


class UpdateBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    wait: bool = Field(default=True, description="Answer when the update is done; otherwise at once, with 202.")


@dataclass(frozen=True, slots=True)
class UpdateAnswer:
    state: str
    """``updated``; ``filling`` while there is too little experience; ``updating`` while somebody is at it."""
    version: int
    waiting: int
    needed: int
    losses: PolicyLosses | None


async def update_policy(asked: Incoming) -> Response:
    done = await asked.services.policy.update(wait=asked.body.wait)
    said = UpdateAnswer(done.state, done.buffer.version, done.buffer.waiting, done.buffer.needed, done.losses)
    return _answer(said, 200 if done.state == "updated" else 202)


class NameBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=NAME)


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    name: str
    version: int
    sha256: str


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    name: str
    version: int
    from_version: int
    sha256: str


async def save_policy(asked: Incoming) -> Response:
    name = asked.body.name
    async with audited(asked.services, asked.caller, asked.request, "save the prompt policy", name):
        try:
            is_new, saved = await asked.services.policy.save(name)
        except NameTaken as error:
            raise Refused(409, str(error), field="name") from None
    return _answer(SavedPolicy(name, saved.version, saved.sha256), 201 if is_new else 200)


async def load_policy(asked: Incoming) -> LoadedPolicy:
    name = asked.body.name
    async with audited(asked.services, asked.caller, asked.request, "load the prompt policy", name):
        try:
            source, loaded = await asked.services.policy.load(name)
        except UnknownVersion as error:
            raise Refused(404, str(error), field="name") from None
    return LoadedPolicy(name, loaded.version, source, loaded.sha256)


@dataclass(frozen=True, slots=True)
class BufferStats:
    size: int
    waiting: int
    needed: int


@dataclass(frozen=True, slots=True)
class ExperienceStats:
    """received = trained + waiting + stale."""

    received: int
    trained: int
    waiting: int
    stale: int


@dataclass(frozen=True, slots=True)
class PolicyStats:
    version: int
    parent: int | None
    updates: int
    dimensions: int
    actions: list[str]
    buffer: BufferStats
    experience: ExperienceStats
    action_counts: dict[str, int]
    mean_reward: float | None
    saved: list[str]
    last_update: PolicyLosses | None


async def policy_stats(asked: Incoming) -> PolicyStats:
    desk = asked.services.policy
    found = await desk.counts()
    size = desk.settings.policy_buffer
    return PolicyStats(
        found.version,
        found.parent,
        found.updates,
        DIMENSIONS,
        list(ACTIONS),
        BufferStats(size, found.waiting, max(0, size - found.waiting)),
        ExperienceStats(found.received, found.trained, found.waiting, found.received - found.trained - found.waiting),
        {name: found.by_action.get(action, 0) for action, name in enumerate(ACTIONS)},
        found.mean_reward,
        found.saved,
        found.last_update,
    )


ALONE = (
    Operation("GET", "/stats", "The policy's version, experience and last losses", policy_stats, PolicyStats),
    Operation(
        "POST", "/select_action", "Choose a mutation for a prompt", select_action, SelectedAction, body=SelectBody
    ),
    Operation(
        "POST",
        "/get_distribution",
        "How likely each mutation is for a prompt",
        get_distribution,
        Distribution,
        body=StateBody,
    ),
    Operation(
        "POST",
        "/store_experience",
        "Keep what a mutation was worth",
        store_experience,
        StoredExperience,
        body=ExperienceBody,
        status=201,
        also=(200,),
        acts=True,
        often=True,
        problems=(404, 409),
    ),
    Operation(
        "POST",
        "/update",
        "Learn from the experience, once the buffer is full",
        update_policy,
        UpdateAnswer,
        body=UpdateBody,
        also=(202,),
        acts=True,
        often=True,
    ),
    Operation(
        "POST",
        "/save",
        "Save the policy under a name",
        save_policy,
        SavedPolicy,
        body=NameBody,
        status=201,
        also=(200,),
        acts=True,
        problems=(409,),
    ),
    Operation(
        "POST",
        "/load",
        "Go on from a saved policy, as a new version",
        load_policy,
        LoadedPolicy,
        body=NameBody,
        acts=True,
        problems=(404,),
    ),
)

UNDER = "/prompts/policy"
OPERATIONS = tuple(replace(one, path=f"{UNDER}{one.path}") for one in ALONE)
