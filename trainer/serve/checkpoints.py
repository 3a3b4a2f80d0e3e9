"""Which checkpoint answers a request: the promoted one, a canary for its agents, or the one that is pinned.

``NAME`` follows promotions and rollbacks; ``NAME@stepN`` is that checkpoint whatever is promoted; step 0 is the
untrained base model. A request that has begun is finished by the checkpoint it began with.

A promotion or rollback may be typed on any host, under any --home, so where there is a database the pointer file is
kept as the ledger has it. The server answers from the file alone: it goes on with what it knows while Postgres is away.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import msgspec

from data_bridge.connection_url import parse_connection_url
from data_bridge.database import Database, open_database
from data_bridge.errors import ConfigurationError, DatabaseError
from data_bridge.models import ChatMessage
from trainer.inference.base_model import check_base
from trainer.inference.checkpoints import StoredStep
from trainer.ledger.releases import Pointer, pointer_file, read_from_database, read_pointer, sync
from trainer.serve.wire import RequestError, not_served
from trainer.types import Completion

logger = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that a start waits for the ledger before it serves what the file says."""


class Stored(Protocol):
    """The checkpoints on this machine's disk."""

    def steps(self) -> list[int]: ...
    def path(self, step: int) -> Path: ...
    def is_sound(self, step: int) -> bool: ...
    def read(self, step: int) -> StoredStep: ...


OnText = Callable[[int, str], None]


class StreamingModel(Protocol):
    """A chat model that also tells what it has written so far; ``EngineModel``."""

    @property
    def name(self) -> str: ...

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 64,
        stop: Sequence[str] = (),
        seed: int | None = None,
        on_text: OnText | None = None,
    ) -> list[Completion]: ...


ModelOf = Callable[[Path | None, str], StreamingModel]
"""Makes the model of a checkpoint directory (None: the base model) under a name; ``Engine.model``."""

TakeUp = Callable[[Sequence[Path]], Awaitable[None]]
"""Has the engines load the checkpoints of a promotion, until one can answer with them; ``Engines.take_up``."""


class ServedCheckpoints:
    """The checkpoints of one model under ``home``, and the pointer to the one that is promoted.

    ``base_model`` is what ``model_of`` runs them on: one that was trained on another is not served. With ``take_up``, a
    promotion that is followed counts once an engine has taken it up.
    """

    def __init__(
        self,
        home: Path,
        model: str,
        stored: Stored,
        model_of: ModelOf,
        *,
        base_model: str,
        take_up: TakeUp | None = None,
    ) -> None:
        self._home = home
        self._model = model
        self._base_model = base_model
        self._stored = stored
        self._model_of = model_of
        self._take_up = take_up
        self._pointer: Pointer | None = None
        self._seen: tuple[int, int] | None = None

    @property
    def served_name(self) -> str:
        """The exact name of what ``NAME`` stands for now."""
        return self._name(self._served_step)

    @property
    def _served_step(self) -> int:
        serving = self._pointer.serving if self._pointer is not None else None
        return serving.checkpoint.step if serving is not None else 0

    def _name(self, step: int) -> str:
        return f"{self._model}@step{step}"

    def names(self) -> list[str]:
        """What ``/v1/models`` lists: the name that follows, and every checkpoint that can be pinned."""
        return [self._model, *(self._name(step) for step in (0, *self._stored.steps()))]

    def choose(self, requested: str, agent_id: str | None) -> StreamingModel:
        """The checkpoint that answers a request for the model ``requested``. RequestError 404 if there is none."""
        if requested == self._model:
            promotion = self._pointer.for_agent(agent_id) if self._pointer is not None else None
            return self._resident(promotion.checkpoint.step if promotion is not None else 0)
        pinned = re.fullmatch(re.escape(self._model) + r"@step(\d{1,9})", requested)
        if pinned is None:
            raise not_served(requested)
        return self._resident(int(pinned[1]))

    def check_served(self) -> None:
        """ConfigurationError if what is promoted was trained on another base model than this server runs."""
        if self._is_here(self._served_step):
            self._check_base(self._served_step)

    def _resident(self, step: int) -> StreamingModel:
        name = self._name(step)
        if step == 0:
            return self._model_of(None, name)
        if not self._is_here(step):
            raise RequestError(404, f"There is no sound checkpoint {name} on this host; see /v1/models.", param="model")
        try:
            self._check_base(step)
        except ConfigurationError as error:
            raise RequestError(404, str(error), param="model") from None
        return self._model_of(self._stored.path(step), name)

    def _is_here(self, step: int) -> bool:
        return step in self._stored.steps() and self._stored.is_sound(step)

    def _check_base(self, step: int) -> None:
        check_base(self._name(step), self._stored.read(step).base_model, self._base_model)

    def refresh(self) -> bool:
        """Read the pointer if it changed; whether what is served did. A broken file keeps what we have."""
        before = self.served_name
        if (news := self._news()) is not None:
            self._pointer = news
        return self.served_name != before

    def _news(self) -> Pointer | None:
        """The pointer, if it was written since it was last read and is not broken."""
        path = pointer_file(self._home, self._model)
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        seen = (stat.st_mtime_ns, stat.st_ino)
        if seen == self._seen:
            return None
        try:
            pointer = read_pointer(self._home, self._model)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("the pointer %s cannot be read (%s); still serving %s", path, error, self.served_name)
            return None
        self._seen = seen
        return pointer

    async def follow(self, *, every: float = 0.25) -> None:
        """Notice promotions and rollbacks until cancelled."""
        if self._pointer is not None:
            await self._taken_up(self._pointer)
        while True:
            before = self.served_name
            if (news := self._news()) is not None:
                await self._taken_up(news)
                self._pointer = news
            if self.served_name != before:
                logger.info("now serving %s", self.served_name)
            await asyncio.sleep(every)

    async def _taken_up(self, pointer: Pointer) -> None:
        """Wait until what ``pointer`` names is loaded where requests for it will go."""
        if self._take_up is None:
            return
        promotions = [pointer.serving, pointer.canary.promotion if pointer.canary is not None else None]
        steps = [promotion.checkpoint.step for promotion in promotions if promotion is not None]
        await self._take_up([self._stored.path(step) for step in steps if step and self._is_here(step)])


@asynccontextmanager
async def following_ledger(url: str, home: Path, model: str, *, every: float = 2.0) -> AsyncIterator[None]:
    """Within the block the file follows the ledger at ``url``; it agrees from the start if Postgres answers."""
    parse_connection_url(url)  # a wrong address never gets better: say so before the server starts
    has_tried = asyncio.Event()
    following = asyncio.create_task(_follow(url, home, model, every, has_tried), name="follow the ledger")
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(has_tried.wait(), _PATIENCE)
        yield
    finally:
        following.cancel()


async def _follow(url: str, home: Path, model: str, every: float, has_tried: asyncio.Event) -> None:
    is_away = False
    while True:
        try:
            async with open_database(
                url, home, statement_timeout=timedelta(seconds=10), max_size=1, read_only=True
            ) as database:
                while True:
                    await _agree(database, home, model)
                    has_tried.set()
                    is_away = False
                    await asyncio.sleep(every)
        except (DatabaseError, OSError) as error:
            if not is_away:
                logger.warning("promotions are not followed, agents keep what they have: %s", error)
            is_away = True
        has_tried.set()
        await asyncio.sleep(every)


async def _agree(database: Database, home: Path, model: str) -> None:
    """Write the file only when it differs: the server reads it again whenever it is written."""
    try:
        known = read_pointer(home, model)
    except msgspec.DecodeError:
        known = None
    if await read_from_database(database, model) != known:
        await sync(database, home, model)
