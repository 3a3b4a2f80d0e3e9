"""Start, stop and status of trainings, through the ledger: from any host, for any host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from data_bridge.errors import ConfigurationError
from trainer.config.commands import TrainSettings, all_variables
from trainer.config.sources import load
from trainer.console.keys import Caller
from trainer.console.operations import TEXT, Incoming, Operation
from trainer.console.problems import Refused
from trainer.console.services import Services, audited
from trainer.console.start_settings import StartTables, check_sections
from trainer.ledger.commands import ask_to_start, ask_to_stop
from trainer.ledger.read.now import NowFacts, now_of
from trainer.ledger.runs import Ledger, new_run_id
from trainer.schedule.commanded import asked_settings, environment_of

MODEL = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
KEY = r"[A-Za-z0-9._:-]{1,100}"


class StartBody(BaseModel):
    """A training to start. The short names are those of common trainers; each stands for one setting."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, pattern=MODEL, description="Name of the model; unset: the console's.")
    batch_size: int | None = Field(default=None, ge=1, le=100_000, description="training.groups_per_step.")
    learning_rate: float | None = Field(default=None, gt=0, le=1, description="training.learning_rate.")
    num_epochs: int | None = Field(
        default=None, ge=1, le=100_000, description="run.iterations: days of the closed loop."
    )
    max_cost: float | None = Field(default=None, ge=0, le=1e9, description="judge.max_cost, in US dollars.")
    settings: StartTables | None = Field(default=None, description="As in run.toml.")  # type: ignore[valid-type]

    def tables(self) -> dict[str, dict[str, Any]]:
        """What was asked for, by section. Refused if a short name and its setting say different things."""
        given: dict[str, Any] = {} if self.settings is None else self.settings.model_dump(mode="json")
        found = asked_settings(given)
        short = {
            ("training", "groups_per_step"): ("batch_size", self.batch_size),
            ("training", "learning_rate"): ("learning_rate", self.learning_rate),
            ("run", "iterations"): ("num_epochs", self.num_epochs),
            ("judge", "max_cost"): ("max_cost", self.max_cost),
        }
        for (section, name), (alias, value) in short.items():
            if value is None:
                continue
            if found.setdefault(section, {}).setdefault(name, value) != value:
                raise Refused(422, f"{alias} and settings.{section}.{name} differ: give one of them.", field=alias)
        return found


@dataclass(frozen=True, slots=True)
class Started:
    run_id: str
    """The run: a new one, or the interrupted one that is resumed."""
    model: str
    state: str
    """``waiting`` until a host takes it."""


class StopBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, pattern=MODEL, description="Name of the model; unset: the console's.")
    reason: str = Field(default="", max_length=500, pattern=TEXT)


@dataclass(frozen=True, slots=True)
class Stopped:
    run_id: str | None
    model: str


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """What is happening to a model now. What is not known is null."""

    model: str
    state: str
    """``idle``, ``waiting``, ``starting`` or ``training``."""
    run_id: str | None
    run_state: str | None
    stage: str | None
    unit: str | None
    step: int | None
    reward: float | None
    reward_std: float | None
    kl: float | None
    entropy: float | None
    tokens_per_second: float | None
    judge_calls: int
    cost: float
    max_cost: float | None
    share: float | None
    eta: float | None
    """Seconds that the training will still take, as far as can be told."""
    host: str | None
    error: str | None
    serving: str | None
    canary: str | None
    at: datetime
    position: int
    """Of the stream of events: what comes after it is not in here."""


def status_of(facts: NowFacts, position: int) -> TrainingStatus:
    run, latest = facts.run, facts.latest
    progress = run.progress if run is not None else None
    is_running = facts.state == "training"
    return TrainingStatus(
        model=facts.model,
        state=facts.state,
        run_id=_run_named(facts),
        run_state=run.state if run is not None else None,
        stage=(progress.stage or None) if progress and is_running else None,
        unit=(progress.unit or None) if progress and is_running else None,
        step=latest.step if latest is not None else None,
        reward=latest.reward if latest is not None else None,
        reward_std=latest.reward_std if latest is not None else None,
        kl=latest.kl if latest is not None else None,
        entropy=latest.entropy if latest is not None else None,
        tokens_per_second=latest.tokens_per_second if latest is not None else None,
        judge_calls=run.judge_calls if run is not None else 0,
        cost=run.cost_usd if run is not None else 0.0,
        max_cost=progress.max_cost if progress is not None else None,
        share=progress.share if progress is not None else None,
        eta=progress.seconds_left if progress and is_running else None,
        host=facts.holder,
        error=run.error if run is not None else None,
        serving=facts.serving,
        canary=facts.canary,
        at=facts.at,
        position=position,
    )


def _run_named(facts: NowFacts) -> str | None:
    if facts.command is not None and facts.state in ("waiting", "starting"):
        return facts.command.run_id
    return None if facts.run is None else facts.run.run_id


class ModelQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, pattern=MODEL, description="Name of the model; unset: the console's.")


async def training_status(asked: Incoming) -> TrainingStatus:
    services = asked.services
    position = services.hub.position  # before the picture, which then has everything up to it
    return status_of(await now_of(services.database, asked.query.model or services.model), position)


async def start_training(asked: Incoming) -> Started:
    body: StartBody = asked.body
    key = asked.request.headers.get("idempotency-key")
    if key is not None and re.fullmatch(KEY, key) is None:
        raise Refused(422, "Idempotency-Key: use up to 100 letters, digits and ._:-", field="Idempotency-Key")
    model = body.model or asked.services.model
    async with audited(asked.services, asked.caller, asked.request, "start training", model):
        return await start(asked.services, asked.caller, model, body.tables(), key)


async def start(
    services: Services, caller: Caller, model: str, tables: dict[str, dict[str, Any]], key: str | None
) -> Started:
    check_sections(tables)
    run_id = await _run_id(services, model, tables)
    command = await ask_to_start(services.database, model, tables, run_id=run_id, asked_by=caller.name, key=key)
    return Started(command.run_id, command.model, command.state)


async def _run_id(services: Services, model: str, tables: dict[str, dict[str, Any]]) -> str:
    """Of the interrupted run that these settings resume, if there is one; otherwise a new one."""
    from trainer.run.session import fingerprint

    environment = environment_of(services.command, tables, model)
    try:
        settings = load(
            TrainSettings, [], prog="train_mmo.py", description="", environ=environment, known_variables=all_variables()
        )
    except ConfigurationError as error:
        raise Refused(422, str(error), field="settings") from None
    unfinished = None
    if settings.run.resume:
        unfinished = await Ledger(services.database).find_unfinished_run(model, fingerprint(settings))
    return unfinished.run_id if unfinished is not None else new_run_id()


async def stop_training(asked: Incoming) -> Stopped:
    body: StopBody = asked.body
    model = body.model or asked.services.model
    async with audited(asked.services, asked.caller, asked.request, "stop training", model, body.reason):
        run_id = await ask_to_stop(asked.services.database, model, asked_by=asked.caller.name, reason=body.reason)
    return Stopped(run_id, model)


OPERATIONS = (
    Operation(
        "POST",
        "/training/start",
        "Ask any idle host to train a model",
        start_training,
        Started,
        body=StartBody,
        status=202,
        acts=True,
        problems=(409,),
        headers={"Idempotency-Key": "The same key is the same training, however often it is sent."},
    ),
    Operation(
        "POST",
        "/training/stop",
        "Ask whoever trains a model to stop after the step in hand",
        stop_training,
        Stopped,
        body=StopBody,
        status=202,
        acts=True,
        problems=(409,),
    ),
    Operation(
        "GET", "/training/status", "What is happening to a model now", training_status, TrainingStatus, query=ModelQuery
    ),
)
