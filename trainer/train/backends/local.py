"""Training on this machine's GPU with ``art.LocalBackend``: unsloth trains while vLLM serves ``model@step``.

ART's backend is used unchanged. Added is what a run that may be killed needs: a partially written checkpoint is set
aside, a step that trained nothing is an error (ART copies the last checkpoint to a new step instead), and a training
that was done before something else failed is found again.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.redaction import redact
from trainer.config.training import AdapterSettings, LocalTrainee
from trainer.faults import may_be_a_rows
from trainer.train.backends import adapter_files
from trainer.train.backends.art_interface import at_pace, base_model_of, import_art, local_arguments, our_names
from trainer.train.backends.deferred import TokenisingScorer, decoupled, prepare_deferred
from trainer.train.backends.prepare import check_trainable, rows_at_fault
from trainer.train.backends.remote_job import Receipt
from trainer.types import Batch, Checkpoint, PreparedBatch, StepResult, Submitted

if TYPE_CHECKING:
    import art
    from art.local import LocalBackend as ArtLocalBackend

logger = logging.getLogger(__name__)

_JOB = "local"
_GRADIENT_STEPS = "data/step_num_gradient_steps"
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the ones that vLLM can serve


@dataclass(frozen=True, slots=True)
class _Opened:
    backend: ArtLocalBackend
    model: art.TrainableModel[Any, Any]
    scorer: TokenisingScorer


class LocalBackend:
    """One model on the GPU of this machine, under ``--home``."""

    name = "local"

    def __init__(self, trainee: LocalTrainee, *, in_process: bool = False) -> None:
        self._trainee = trainee
        self._in_process = in_process
        self._base_model = base_model_of(self.name, trainee.model)
        self._path = trainee.home / "art"
        self._opened: _Opened | None = None

    @property
    def _checkpoints(self) -> Path:
        """The folder where ART keeps them."""
        return self._path / self._trainee.project / "models" / self._trainee.model.model / "checkpoints"

    async def open(self) -> int:
        if self._opened is None:
            adapter_files.set_broken_aside(self._checkpoints)
            self._opened = await self._register()
        return await self.current_step()

    async def _register(self) -> _Opened:
        art = import_art()
        from art.local import LocalBackend as ArtLocalBackend

        backend = ArtLocalBackend(path=str(self._path), in_process=self._in_process)
        model = art.TrainableModel(
            name=self._trainee.model.model,
            project=self._trainee.project,
            base_model=self._base_model_path(),
            base_path=str(self._path),
            report_metrics=[],
            _internal_config=_internal_config(self._trainee.training),
        )
        try:
            with redirect_stdout(sys.stderr):  # ART prints; our stdout is for the result
                await model.register(backend)
        except BaseException as error:
            await backend.close()
            if not isinstance(error, Exception):
                raise
            raise BackendError(
                f"ART's local backend did not start ({redact(_brief(error))}): "
                "see docs/gpu-and-serverless.md for what it needs, or use --backend cpu."
            ) from error
        return _Opened(backend, model, TokenisingScorer(model.base_model, marks=True))

    def _base_model_path(self) -> str:
        """The base model as ART loads it: the embedded one by its directory, every other by its name."""
        from trainer.inference.base_model import EMBEDDED, model_directory

        if self._base_model == EMBEDDED:
            return str(model_directory(EMBEDDED, self._trainee.home).resolve())
        return self._base_model

    async def remove(self, steps: Sequence[int]) -> list[int]:
        return adapter_files.remove_steps(self._checkpoints, steps)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.backend.close()
        self._opened = None

    async def current_step(self) -> int:
        return adapter_files.newest_whole_step(self._checkpoints)

    def checkpoint(self, step: int) -> Checkpoint:
        location = str((self._checkpoints / f"{step:04d}").resolve())
        return Checkpoint(self._trainee.model.model, step, self._base_model, self.name, location)

    async def prepare(self, batch: Batch) -> PreparedBatch:
        return await prepare_deferred(batch, self._trainee, self._used().scorer)

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        check_trainable(prepared)
        opened = self._used()
        receipt = Receipt.before_sending(await self.current_step(), prepared.trainable_tokens).taken_as(_JOB)
        await on_submitted(str(receipt))
        try:
            with redirect_stdout(sys.stderr):
                result = await opened.backend.train(
                    opened.model,
                    prepared.groups,
                    **at_pace(local_arguments(self._trainee.training), prepared.pace),
                    **decoupled(prepared, self._trainee.training),
                )
        except Exception as error:
            if (trained := self._result(receipt, prepared.metrics)) is None:
                found = rows_at_fault(prepared.groups, opened.scorer.fault_of_tokens) if may_be_a_rows(error) else None
                if found is not None:
                    raise found from error
                raise BackendError(
                    f"Training batch {prepared.batch.batch_id} on the GPU failed ({redact(_brief(error))}): "
                    "the last checkpoint is unchanged; run again to train the batch."
                ) from error
            logger.warning("The batch was trained, but afterwards ART failed: %s", redact(_brief(error)))
            return trained
        if result.metrics.get(_GRADIENT_STEPS, 1.0) == 0:
            self._remove_copy(result.step)
            raise BackendError(
                f"Batch {prepared.batch.batch_id} made no gradient step: ART found nothing in it to train on; "
                "are all rewards of its groups equal, or its trajectories too long?"
            )
        trained = self._result(receipt, {**prepared.metrics, **our_names(result.metrics)})
        if trained is None:
            raise BackendError(
                f"Training batch {prepared.batch.batch_id} left no complete checkpoint in {self._checkpoints}: "
                "is the disk full? The last good checkpoint is still there."
            )
        return trained

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        return None if job_id is None else self._result(Receipt.parse(job_id, policy_step), {})

    def _used(self) -> _Opened:
        if self._opened is None:
            raise BackendError("The local backend was used before it was opened; this is a bug, please report it.")
        return self._opened

    def _result(self, receipt: Receipt, metrics: dict[str, float]) -> StepResult | None:
        """The step for this receipt, or None if there is no complete checkpoint after it."""
        step = adapter_files.newest_whole_step(self._checkpoints)
        if step <= receipt.after_step:
            return None
        checkpoint = self.checkpoint(step)
        adapter_files.make_durable(Path(checkpoint.location))
        return StepResult(checkpoint, receipt.tokens, metrics)

    def _remove_copy(self, step: int) -> None:
        """Delete the copy of the last checkpoint that ART makes when it has trained nothing."""
        copy, original = self._checkpoints / f"{step:04d}", self._checkpoints / f"{step - 1:04d}"
        if adapter_files.is_whole(copy) and adapter_files.is_whole(original):
            shutil.rmtree(copy)


def _internal_config(settings: AdapterSettings) -> dict[str, Any]:
    """ART's configuration besides the training arguments. The alpha keeps ART's own ratio to the rank."""
    rank = settings.lora_rank
    served = next((one for one in _LORA_RANKS if one >= rank), None)
    if served is None:
        raise ConfigurationError(f"vLLM cannot serve --lora-rank {rank}: the maximum is {_LORA_RANKS[-1]}.")
    return {
        "peft_args": {"r": rank, "lora_alpha": 2 * rank},
        "trainer_args": {"max_grad_norm": settings.max_grad_norm},
        "engine_args": {"max_lora_rank": served},
    }


def _brief(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:300]
