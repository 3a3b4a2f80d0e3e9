"""Training on W&B Serverless RL, through ART's own client: one job for a batch, and no job lost.

The server returns a job's id once, in the answer to its submission, and can neither list jobs nor recognise a
batch that was sent before. So the ledger records a batch before it leaves this process and again when its job
is known, and a batch is only sent again if one of these is certain:

    the server refused it, or was never reached     nothing was accepted
    its job failed and there is no new checkpoint   nothing was trained
    its job ended without one gradient step         nothing was trained, a new checkpoint is a copy of the last
    its answer was lost, and --remote-deadline      a job would have ended by now
    has passed since without a new checkpoint

Any other new checkpoint since the submission means that the batch was trained: the ledger's lock keeps every other
trainer away from the model.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from data_bridge.errors import BackendError, ConfigurationError
from trainer.config.training import TraineeSettings
from trainer.probed import ProbedServer, ServerSilent
from trainer.train.backends import remote_job
from trainer.train.backends.art_interface import at_pace, base_model_of, import_art, our_names, serverless_arguments
from trainer.train.backends.deferred import TokenisingScorer, needs_scoring, prepare_logged
from trainer.train.backends.prepare import check_sendable, check_trainable
from trainer.train.backends.remote_job import Event, Fate, JobEnd, Pace, Patience, Receipt
from trainer.types import Batch, Checkpoint, PreparedBatch, StepResult, Submitted

if TYPE_CHECKING:
    import art

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Untrained:
    """A batch that was sent and has no checkpoint."""

    why: str
    may_be_sent_again: bool


class ServerlessBackend:
    """One model of W&B Serverless RL. The key is passed to ART's client and never put into the environment."""

    name = "serverless"

    def __init__(
        self,
        trainee: TraineeSettings,
        entity: str | None,
        deadline: timedelta,
        base_url: str | None,
        key: SecretStr | None,
        pace: Pace | None = None,
    ) -> None:
        if key is None or not key.get_secret_value():
            raise ConfigurationError("WANDB_API_KEY is not set: --backend serverless trains on W&B and needs a key.")
        self._trainee = trainee
        self._entity = entity
        self._deadline = deadline
        self._base_url = base_url
        self._key = key
        self._pace = pace or Pace()
        self._arguments = serverless_arguments(trainee.training)
        self._base_model = base_model_of(self.name, trainee.model)
        self._scorer = TokenisingScorer(self._base_model)
        self._server = ProbedServer(
            "W&B", lambda: remote_job.is_there(self._newest_step, self._pace), self._pace.gone_after
        )
        self._remote: art.ServerlessBackend | None = None
        self._model: art.TrainableModel[Any, Any] | None = None

    async def open(self) -> int:
        if self._model is None:
            await self._register()
        return await self.current_step()

    async def _register(self) -> None:
        art = import_art()
        name = self._trainee.model.model
        remote = art.ServerlessBackend(api_key=self._key.get_secret_value(), base_url=self._base_url)
        try:
            registered = await remote_job.ask(
                lambda: self._registration(remote), f"model {name}", patience=self._pace.opening, pace=self._pace
            )
            if registered.base_model != self._base_model:
                raise ConfigurationError(
                    f"--model {name} exists in W&B and was trained from {registered.base_model}, "
                    f"not {self._base_model}: use another --model, or that --base-model."
                )
        except BaseException as error:
            await remote.close()
            if remote_job.is_refused_key(error.__cause__):
                raise ConfigurationError("W&B refused WANDB_API_KEY: set a valid key.") from error
            raise
        self._remote = remote
        self._model = art.TrainableModel(
            name=registered.name,
            project=registered.project,
            entity=registered.entity,
            id=registered.id,
            base_model=self._base_model,
            base_path=str(self._trainee.home / "art"),
            report_metrics=[],
        )

    async def _registration(self, remote: art.ServerlessBackend) -> Any:
        registered = await remote._client.models.create(
            entity=self._entity,
            project=self._trainee.project,
            name=self._trainee.model.model,
            base_model=self._base_model,
            return_existing=True,
        )
        names = ("id", "name", "project", "entity", "base_model")
        if not all(isinstance(getattr(registered, name, None), str) for name in names):
            raise remote_job.Unreadable
        return registered

    async def remove(self, steps: Sequence[int]) -> list[int]:
        """Nothing is removed: W&B keeps the checkpoints as artifacts, by the project's own rules."""
        return []

    async def close(self) -> None:
        await self._server.close()
        if self._remote is not None:
            await self._remote.close()
        self._remote = self._model = None

    async def current_step(self) -> int:
        return await self._step_known()

    async def _step_known(self, batch: str = "", pace: Pace | None = None) -> int:
        """The newest step. ``batch`` is what it is asked for, as an error names it."""
        pace = pace or self._pace
        return await remote_job.ask(
            self._newest_step, f"the newest checkpoint{batch}", patience=pace.patience, pace=pace
        )

    async def _newest_step(self) -> int:
        """As ``art.ServerlessBackend._get_step``, which takes a gateway's page for a model without checkpoints."""
        remote, model = self._opened()
        page = await remote._client.models.checkpoints.list(limit=1, order="desc", model_id=model.id)
        rows = getattr(page, "data", None)
        if not isinstance(rows, list) or not all(isinstance(getattr(row, "step", None), int) for row in rows):
            raise remote_job.Unreadable
        return max((int(row.step) for row in rows), default=0)

    def checkpoint(self, step: int) -> Checkpoint:
        remote, model = self._opened()
        location = str(remote._model_inference_name(model, step))
        return Checkpoint(self._trainee.model.model, step, self._base_model, self.name, location)

    async def prepare(self, batch: Batch) -> PreparedBatch:
        return await prepare_logged(batch, self._trainee, self._scorer)

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        check_trainable(prepared)
        check_sendable(prepared)
        receipt = await self._submit(prepared, on_submitted)
        outcome = await self._outcome(receipt, prepared.batch.batch_id)
        if isinstance(outcome, _Untrained):
            raise BackendError(f"Batch {prepared.batch.batch_id} was not trained: {outcome.why}")
        return replace(outcome, metrics={**prepared.metrics, **outcome.metrics})

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        if job_id is None:
            return None
        receipt = Receipt.parse(job_id, policy_step)
        outcome = await self._outcome(receipt, batch_id)
        if isinstance(outcome, StepResult):
            return outcome
        if not outcome.may_be_sent_again:
            raise BackendError(f"Batch {batch_id} cannot be settled yet: {outcome.why}")
        logger.warning("Batch %s may be sent again: %s", batch_id, outcome.why)
        return None

    async def _submit(self, prepared: PreparedBatch, on_submitted: Submitted) -> Receipt:
        """Send the batch until it is accepted, refused, or its fate is unknown; the ledger always has the state.

        BackendError if the server is silent: what became of the batch is asked when the run is resumed.
        """
        name = _for(prepared.batch.batch_id)
        what = f"the submission{name}"
        patience = Patience(self._pace.patience, what, self._pace)
        pause = self._pace.first_pause
        after_step = await self._step_known(name)
        while True:
            receipt = Receipt.before_sending(after_step, prepared.trainable_tokens)
            await on_submitted(str(receipt))
            try:
                job_id = await self._server.answer(lambda: self._post(prepared))
            except ServerSilent as silent:
                raise remote_job.unanswered(what, TimeoutError()) from silent
            except remote_job.FAULTS as fault:
                fate = remote_job.fate_of(fault)
                if fate is Fate.UNKNOWN:
                    logger.warning(
                        "The answer about batch %s was lost: %s", prepared.batch.batch_id, remote_job.explain(fault)
                    )
                    return receipt
                await on_submitted(str(receipt.refused()))
                if fate is Fate.REFUSED:
                    raise BackendError(
                        f"W&B refused batch {prepared.batch.batch_id} ({remote_job.explain(fault)}): "
                        "fix what it names, then run again; nothing was trained."
                    ) from fault
                patience.forgive(fault)
            else:
                receipt = receipt.taken_as(job_id)
                await on_submitted(str(receipt))
                return receipt
            await patience.pause(pause)
            pause = self._pace.longer(pause)
            if await self._step_known(name) > after_step:
                return receipt  # it was accepted after all, whatever the answer said

    async def _post(self, prepared: PreparedBatch) -> str:
        remote, model = self._opened()
        job = await remote._client.training_jobs.create(
            model_id=model.id,
            trajectory_groups=prepared.groups,
            experimental_config=_experimental_config(
                {**at_pace(self._arguments, prepared.pace), "precalculate_logprobs": needs_scoring(prepared)}
            ),
        )
        job_id = getattr(job, "id", None)
        if not isinstance(job_id, str) or not job_id:
            raise remote_job.Unreadable
        return job_id

    async def _outcome(self, receipt: Receipt, batch_id: str) -> StepResult | _Untrained:
        """The outcome of the batch of this receipt; waits as long as it can still change."""
        if receipt.job_id is not None:
            return await self._job_outcome(receipt, receipt.job_id, batch_id)
        if receipt.is_refused:
            deadline = time.monotonic()
            why = "W&B did not accept it."
        else:
            left = self._deadline - (datetime.now(UTC) - receipt.sent)
            deadline = remote_job.deadline_of(left)
            why = "the answer to its submission was lost, and no checkpoint appeared within --remote-deadline."
            logger.info(
                "Waiting up to %.0f minutes for a checkpoint after step %d: the answer to a submission was lost, "
                "and sending it again could train it twice.",
                max(left.total_seconds(), 0) / 60,
                receipt.after_step,
            )
        step = await remote_job.wait_for_step(
            self._newest_step, receipt.after_step, deadline=deadline, pace=self._pace, batch=_for(batch_id)
        )
        return _Untrained(why, may_be_sent_again=True) if step is None else self._result(receipt, step, JobEnd())

    async def _job_outcome(self, receipt: Receipt, job_id: str, batch_id: str) -> StepResult | _Untrained:
        deadline, name = remote_job.deadline_of(self._deadline), _for(batch_id)
        try:
            end = await remote_job.follow_job(
                job_id, self._events_of(job_id), deadline=deadline, pace=self._pace, batch=name
            )
        except BackendError as unfollowed:
            # The job cannot be followed any longer, but it may have succeeded: the checkpoints show it.
            try:
                step = await self._step_known(name, self._pace.brief)
            except BackendError:
                raise unfollowed from None
            if step <= receipt.after_step:
                raise
            return self._result(receipt, step, JobEnd())
        if end.error is not None:
            step = await self._step_known(name)
            if step <= receipt.after_step:
                return _Untrained(f"W&B training job {job_id} failed: {end.error}.", may_be_sent_again=True)
            return self._result(receipt, step, end)
        if not end.metrics:
            return _Untrained(
                f"W&B training job {job_id} made no gradient step: it found nothing in the batch to train on; "
                "are all rewards of its groups equal, or its trajectories too long?",
                may_be_sent_again=True,
            )
        found = await remote_job.wait_for_step(
            self._newest_step,
            receipt.after_step,
            deadline=min(deadline, time.monotonic() + self._pace.checkpoint_grace),
            pace=self._pace,
            batch=name,
        )
        if found is not None:
            return self._result(receipt, found, end)
        overdue = datetime.now(UTC) - receipt.sent > self._deadline
        return _Untrained(
            f"W&B training job {job_id} ended without a checkpoint after step {receipt.after_step}; "
            "look at it in W&B, and run again.",
            may_be_sent_again=overdue,
        )

    def _events_of(self, job_id: str) -> Any:
        from openai import NOT_GIVEN

        remote, _ = self._opened()

        def events_after(seen: str | None) -> AsyncIterator[Event]:
            events: AsyncIterator[Event] = remote._client.training_jobs.events.list(
                training_job_id=job_id, after=seen or NOT_GIVEN
            )
            return events

        return events_after

    def _result(self, receipt: Receipt, step: int, end: JobEnd) -> StepResult:
        if step > receipt.after_step + 1:
            logger.warning(
                "The model went from step %d to %d while one batch was trained: is another process training %s?",
                receipt.after_step,
                step,
                self._trainee.model.model,
            )
        return StepResult(self.checkpoint(step), receipt.tokens, _averaged(end.metrics))

    def _opened(self) -> tuple[Any, Any]:
        if self._remote is None or self._model is None:
            raise BackendError("The serverless backend was used before it was opened; this is a bug, please report it.")
        return self._remote, self._model


def _for(batch_id: str) -> str:
    return f" for batch {batch_id}"


def _experimental_config(arguments: dict[str, Any]) -> dict[str, Any]:
    """The job's configuration exactly as ``art.ServerlessBackend.train`` would send it for these arguments."""
    from art._backend_training import build_rl_train_configs
    from art.serverless.client import ExperimentalTrainingConfig

    config, experimental = build_rl_train_configs(**arguments)
    sent: dict[str, Any] = {name: experimental.get(name) for name in ExperimentalTrainingConfig.__annotations__}
    return {**sent, "learning_rate": config.learning_rate}


def _averaged(samples: list[dict[str, float]]) -> dict[str, float]:
    """The averages of the metrics of a job's gradient steps."""
    from art.metrics_taxonomy import average_metric_samples
    from art.serverless.backend import _canonicalize_upstream_metrics

    return our_names(average_metric_samples(_canonicalize_upstream_metrics(sample) for sample in samples))
