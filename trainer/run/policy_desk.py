"""The prompt policy as the console and ``prompts.py serve`` offer it: the newest checkpoint of the ledger at hand.

torch is loaded with the first question, in a thread, as is everything that computes: the event loop never waits for
it. Several processes may serve one policy; each looks for a newer version at most once a second, and experience of an
older one is kept and counted, but not learnt from.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from data_bridge.database import Database
from data_bridge.errors import BackendError
from trainer.config.prompts import ConsolePrompts, PolicySettings
from trainer.ledger import policy as ledger
from trainer.ledger.policy import KeptExperience, PolicyCheckpoint, PolicyCounts, PolicyLosses, SentExperience

if TYPE_CHECKING:
    from trainer.lesson import Embedder
    from trainer.prompts.experience import Experience, Selection, UpdateReport
    from trainer.prompts.material import PromptMaterial
    from trainer.prompts.policy import PromptPolicy

NAME = "prompts"
_LOOK_AGAIN = 1.0
"""Seconds for which the version at hand counts as the newest."""
_MATERIAL_FOR = 60.0
"""Seconds for which what the ledger knows of the game's errors counts as known."""


@dataclass(frozen=True, slots=True)
class PromptState:
    """A prompt that the policy is asked about."""

    embedding: Sequence[float]
    mask: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    version: int
    waiting: int
    needed: int


@dataclass(frozen=True, slots=True)
class Updated:
    state: Literal["filling", "updating", "updated"]
    buffer: Buffer
    losses: PolicyLosses | None = None


@dataclass(slots=True)
class _AtHand:
    version: int
    policy: PromptPolicy
    looked_at: float


class PolicyDesk:
    """Selects, stores experience, updates, saves and loads."""

    def __init__(
        self,
        database: Database,
        settings: PolicySettings,
        limits: ConsolePrompts,
        embedder: Callable[[], Embedder],
        *,
        model: str,
        reply: str | None = None,
        name: str = NAME,
    ) -> None:
        """``embedder`` makes the embedder when a prompt is first asked about by its text. Of ``model`` are the errors
        that limits are made of; ``reply`` is the regular expression of a valid reply, if it is given."""
        self.settings, self.name = settings, name
        self._database, self._limits, self._make_embedder = database, limits, embedder
        self._model, self._reply = model, reply
        self._embedder: Embedder | None = None
        self._material: tuple[float, PromptMaterial] | None = None
        self._at_hand: _AtHand | None = None
        self._opening = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._background: set[asyncio.Task[Updated]] = set()
        self._selecting = ThreadPoolExecutor(1, "policy selects")
        self._learning = ThreadPoolExecutor(1, "policy learns")

    # Asking

    async def state_of(self, prompt: str, mask: tuple[bool, ...] | None = None) -> PromptState:
        """The embedding of a prompt, and which mutations apply to it, if ``mask`` does not say so: those that our
        operators could make of it. BackendError if it cannot be embedded now."""
        if self._embedder is None:
            self._embedder = self._make_embedder()
        (vector,) = await self._embedder.embed([prompt])
        if len(vector) > self.settings.policy_input:
            raise BackendError(
                f"The embedding model gives {len(vector)} numbers, the policy reads {self.settings.policy_input}: "
                "choose another model, or --policy-input."
            )
        padded = [*vector.tolist(), *[0.0] * (self.settings.policy_input - len(vector))]
        return PromptState(padded, mask or await self._applicable(prompt))

    async def _applicable(self, prompt: str) -> tuple[bool, ...]:
        from trainer.prompts.mutations import applicable
        from trainer.prompts.structure import parse
        from trainer.run.prompt_material import material_for

        if self._material is None or time.monotonic() - self._material[0] > _MATERIAL_FOR:
            found = await material_for(self._database, self._model, self._reply)
            self._material = (time.monotonic(), found)
        return await asyncio.to_thread(applicable, parse(prompt), self._material[1], self._limits)

    async def select(self, asked: PromptState, *, deterministic: bool, seed: int | None) -> tuple[int, Selection]:
        """The version that selects, and what it selects."""
        at_hand = await self._newest()

        def select() -> Selection:
            return at_hand.policy.select(asked.embedding, asked.mask, deterministic=deterministic, seed=seed)

        return at_hand.version, await self._in(self._selecting, select)

    # Experience and updates

    async def store(self, sent: SentExperience) -> tuple[KeptExperience, Buffer]:
        await self._begun()
        kept = await ledger.keep_experience(self._database, self.name, sent)
        return kept, self._buffer(kept.version, kept.waiting)

    async def update(self, *, wait: bool) -> Updated:
        """Learn from all usable experience, if there is enough. Without ``wait`` that goes on in the background."""
        buffer = await self._waiting()
        if buffer.needed:
            return Updated("filling", buffer)
        if not wait:
            task = asyncio.create_task(self._update(), name="update the policy")
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return Updated("updating", buffer)
        return await self._update()

    async def _update(self) -> Updated:
        async with self._changing, ledger.one_update_at_a_time(self._database, self.name) as is_ours:
            if not is_ours:
                return Updated("updating", await self._waiting())
            at_hand = await self._newest(look=True)
            buffer = await self._waiting()
            if buffer.needed:  # another client was quicker
                return Updated("filling", buffer)
            sent = await ledger.experience_to_learn(self._database.pool, self.name, at_hand.version)
            learnt, weights, losses = await self._in(
                self._learning, lambda: _learnt(at_hand.policy, self.settings, sent, at_hand.version)
            )
            ids = [one.experience_id for one in sent]
            if not await ledger.commit_update(self._database, self.name, at_hand.version, weights, losses, ids):
                return Updated("filling", await self._waiting())
            self._at_hand = _AtHand(losses.version, learnt, time.monotonic())
        return Updated("updated", await self._waiting(), losses)

    async def _waiting(self) -> Buffer:
        version = (await self._newest(look=True)).version
        return self._buffer(version, await ledger.waiting_for_update(self._database.pool, self.name, version))

    def _buffer(self, version: int, waiting: int) -> Buffer:
        return Buffer(version, waiting, max(0, self.settings.policy_buffer - waiting))

    # Names

    async def save(self, name: str) -> tuple[bool, PolicyCheckpoint]:
        await self._begun()
        async with self._changing:
            return await ledger.name_version(self._database, self.name, name)

    async def load(self, name: str) -> tuple[int, PolicyCheckpoint]:
        """The version that was saved, and the new one that it is now."""
        async with self._changing:
            source, loaded = await ledger.load_version(self._database, self.name, name)
            await self._newest(look=True)
        return source, loaded

    async def counts(self) -> PolicyCounts:
        await self._begun()
        return await ledger.policy_counts(self._database, self.name)

    # The policy at hand

    async def _begun(self) -> None:
        """There is a first version; what only reads or stores needs no more, and no torch."""
        if self._at_hand is None and not await ledger.newest_version(self._database.pool, self.name):
            await self._newest()

    async def _newest(self, *, look: bool = False) -> _AtHand:
        """The policy; ``look``: for a newer one now, not only once a second."""
        found = self._at_hand
        if found is not None and not look and time.monotonic() - found.looked_at < _LOOK_AGAIN:
            return found
        async with self._opening:
            found = self._at_hand
            newest = await ledger.newest_version(self._database.pool, self.name)
            if found is None or found.version != newest:
                found = await self._read()
            found.looked_at = time.monotonic()
            self._at_hand = found
        return found

    async def _read(self) -> _AtHand:
        kept = await ledger.newest_checkpoint(self._database.pool, self.name)
        if kept is None:
            first = await self._in(self._learning, lambda: _new(self.settings))
            await ledger.begin_policy(self._database, self.name, first)
            kept = await ledger.newest_checkpoint(self._database.pool, self.name)
        assert kept is not None
        policy = await self._in(self._learning, lambda: _opened(kept.weights, self.settings))
        return _AtHand(kept.version, policy, time.monotonic())

    async def _in(self, threads: ThreadPoolExecutor, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    async def close(self) -> None:
        """An update in hand is waited for."""
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._embedder is not None:
            await self._embedder.close()
            self._embedder = None
        for threads in (self._selecting, self._learning):
            threads.shutdown(wait=True)


def _new(settings: PolicySettings) -> bytes:
    from trainer.prompts.policy import PromptPolicy

    return PromptPolicy(settings).to_bytes()


def _opened(weights: bytes, settings: PolicySettings) -> PromptPolicy:
    from trainer.prompts.policy import PromptPolicy

    return PromptPolicy.from_bytes(weights, settings)


def _learnt(
    acting: PromptPolicy, settings: PolicySettings, sent: Sequence[SentExperience], version: int
) -> tuple[PromptPolicy, bytes, PolicyLosses]:
    """A copy of the policy that has learnt from ``sent``: whoever selects meanwhile sees none of it."""
    learner = _opened(acting.to_bytes(), settings)
    report = learner.update(experience_of(acting, sent))
    return learner, learner.to_bytes(), losses_of(report, version + 1)


def experience_of(acting: PromptPolicy, sent: Sequence[SentExperience]) -> list[Experience]:
    """``sent`` as an update takes it. The probability and the value of each decision are computed again by the version
    that made it: what a client would say of them is not asked for."""
    import numpy as np

    from trainer.prompts.experience import Experience

    found = []
    for one in sent:
        vector = np.frombuffer(one.embedding, np.float32)
        seen = acting.select(vector, one.action_mask, deterministic=True)
        chance = math.log(max(seen.probabilities[one.action], 1e-30))
        decided = (vector, one.action_mask, one.action, chance, seen.value, one.reward, one.done)
        found.append(Experience(*decided, one.episode, one.step, one.version))
    return found


def losses_of(report: UpdateReport, version: int) -> PolicyLosses:
    explained = report.explained_variance if math.isfinite(report.explained_variance) else None
    losses = (report.policy_loss, report.value_loss, report.entropy, report.approx_kl, report.clip_share)
    return PolicyLosses(version, report.decisions, *losses, explained, report.learning_rate)
