"""Which checkpoint answers a request: the promoted one, a canary for its agents, or the one that is pinned.

``NAME`` follows promotions and rollbacks; ``NAME@stepN`` is that checkpoint whatever is promoted; step 0 is the
untrained base model. A request that has begun is finished by the checkpoint it began with.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from trainer.pointer import Pointer, pointer_file, read_pointer
from trainer.serving.wire import RequestError
from trainer.types import ChatModel

logger = logging.getLogger(__name__)

ModelOf = Callable[[Path | None, str], ChatModel]
"""Makes the model of a checkpoint directory (None: the base model) under a name; ``Engine.model``."""


class ServedCheckpoints:
    """The checkpoints of one model under ``home``, and the pointer to the one that is promoted."""

    def __init__(self, home: Path, model: str, checkpoint_directory: Callable[[int], Path], model_of: ModelOf) -> None:
        self._home = home
        self._model = model
        self._directory_of = checkpoint_directory
        self._model_of = model_of
        self._pointer: Pointer | None = None
        self._seen: tuple[int, int] | None = None

    @property
    def served_name(self) -> str:
        """The exact name of what ``NAME`` stands for now."""
        serving = self._pointer.serving if self._pointer is not None else None
        return f"{self._model}@step{serving.checkpoint.step if serving is not None else 0}"

    def names(self) -> list[str]:
        """What ``/v1/models`` lists: the name that follows, and every checkpoint that can be pinned."""
        steps = [0]
        parent = self._directory_of(1).parent
        if parent.is_dir():
            found = (re.fullmatch(r"\d+", entry.name) for entry in parent.iterdir() if entry.is_dir())
            steps += sorted(int(match[0]) for match in found if match is not None and int(match[0]) > 0)
        return [self._model, *(f"{self._model}@step{step}" for step in steps)]

    def choose(self, requested: str, agent_id: str | None) -> ChatModel:
        """The checkpoint that answers a request for the model ``requested``. RequestError 404 if there is none."""
        if requested == self._model:
            promotion = self._pointer.for_agent(agent_id) if self._pointer is not None else None
            return self._resident(promotion.checkpoint.step if promotion is not None else 0)
        pinned = re.fullmatch(re.escape(self._model) + r"@step(\d{1,9})", requested)
        if pinned is None:
            raise RequestError(404, f"The model {requested!r} is not served here; see /v1/models.", param="model")
        return self._resident(int(pinned[1]))

    def _resident(self, step: int) -> ChatModel:
        name = f"{self._model}@step{step}"
        if step == 0:
            return self._model_of(None, name)
        directory = self._directory_of(step)
        if not directory.is_dir():
            raise RequestError(404, f"There is no checkpoint {name} on this host; see /v1/models.", param="model")
        return self._model_of(directory, name)

    def refresh(self) -> bool:
        """Read the pointer if it changed; whether what is served did. A broken file keeps what we have."""
        path = pointer_file(self._home, self._model)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return False
        seen = (stat.st_mtime_ns, stat.st_ino)
        if seen == self._seen:
            return False
        before = self.served_name
        try:
            self._pointer = read_pointer(self._home, self._model)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the pointer %s cannot be read (%s); still serving %s", path, error, before)
            return False
        self._seen = seen
        return self.served_name != before

    async def follow(self, *, every: float = 0.25) -> None:
        """Notice promotions and rollbacks until cancelled."""
        while True:
            if self.refresh():
                logger.info("now serving %s", self.served_name)
            await asyncio.sleep(every)
