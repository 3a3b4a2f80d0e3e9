"""Run tracking by wandb, on if there is a key and offline on request, or as TensorBoard files; never in the way.

It is called in its own thread. If the tracker cannot start, hangs or fails, the log gets a warning; training neither
waits for it nor ends with it. The key of wandb is an argument and never put into the environment, where ART would find
it (its training call would then raise after the remote training is done).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from data_bridge.redaction import redact
from trainer.config.training import BackendSettings

logger = logging.getLogger(__name__)

_MAX_FINISH_SECONDS = 10.0
"""Maximum time that the end of a run waits for the tracker."""

_MAX_WAITING = 1000
"""Maximum number of steps that wait for a slow tracker; any more are dropped."""


class Tracker:
    """Reports steps to wandb or TensorBoard. Calls return immediately."""

    def __init__(self, start: Callable[[], Any] | None = None, name: str = "wandb") -> None:
        self._name = name
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None
        if start is not None:
            self._thread = threading.Thread(target=self._work, args=(start,), name=name, daemon=True)
            self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._thread is None:
            return
        try:
            self._waiting.put_nowait((step, dict(metrics)))
        except queue.Full:
            logger.debug("the tracker is too slow; step %d is not tracked", step)

    def close(self) -> None:
        """Give the tracker some time to finish."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=_MAX_FINISH_SECONDS)
            self._thread.join(_MAX_FINISH_SECONDS)
        except queue.Full:
            pass
        if self._thread.is_alive():
            logger.warning(
                "%s did not finish within %.0f s; the run folder has every metric", self._name, _MAX_FINISH_SECONDS
            )

    def _work(self, start: Callable[[], Any]) -> None:
        try:
            run = start()
            while (entry := self._waiting.get()) is not None:
                step, metrics = entry
                run.log(metrics, step=step)
            run.finish()
        except Exception as error:
            said = redact(" ".join(str(error).split())) or type(error).__name__
            logger.warning("%s tracking is off: %s", self._name, said)


class TensorBoardFiles:
    """Writes steps as TensorBoard reads them, with what the user has installed beside torch."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()


def mode_of(settings: BackendSettings, key: SecretStr | None) -> Literal["online", "offline", "tensorboard", "off"]:
    """``online``, ``offline``, ``tensorboard`` or ``off``."""
    if settings.tracking != "auto":
        return settings.tracking
    return "online" if key is not None else "off"


@contextmanager
def tracking(
    settings: BackendSettings, key: SecretStr | None, run_id: str, folder: Path, config: Mapping[str, Any]
) -> Iterator[Tracker]:
    """The tracker of one run."""
    mode = mode_of(settings, key)

    def start() -> Any:
        if mode == "tensorboard":
            return TensorBoardFiles(folder / "tensorboard")
        import wandb

        return wandb.init(
            project=settings.wandb_project,
            entity=settings.wandb_entity,
            id=run_id,
            name=run_id,
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            config=dict(config),
            mode=mode if mode in ("online", "offline") else "disabled",
            settings=wandb.Settings(
                api_key=key.get_secret_value() if key is not None and mode == "online" else None,
                silent=True,
                console="off",
                init_timeout=60,
                disable_git=True,
                save_code=False,
                x_disable_meta=True,  # it contains sys.argv and the environment of the host
            ),
        )

    tracker = Tracker(start if mode != "off" else None, "tensorboard" if mode == "tensorboard" else "wandb")
    try:
        yield tracker
    finally:
        tracker.close()
