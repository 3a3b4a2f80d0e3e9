"""Asks the promoted release what it would do, and decides whether that is shown.

A share of the questions, drawn by who asks what, is shown nothing, so that the worth of advice can be measured. The
model is asked for these too, and where it abstains: what it would have said is kept, and calibrates as well as what was
shown. The same agent with the same messages in the same hour gets the same answer, and cannot draw again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import msgspec

from data_bridge.database import Database
from data_bridge.errors import BackendError
from data_bridge.models import ChatMessage
from data_bridge.redaction import redact
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.advice.proposal import Proposal, proposal_of
from trainer.config.console import AdvisorSettings
from trainer.ledger.advice import (
    AdviceRow,
    NewAdvice,
    StoredCalibration,
    known_advice,
    newest_calibration,
    store_advice,
)
from trainer.ledger.releases import Promotion, serving
from trainer.types import ChatModel

logger = logging.getLogger(__name__)

CALIBRATE = "scripts/calibrate_advice.py"
MOST_AT_ONCE = 8
"""Questions that the model has in hand; others wait, and when as many wait, the next is told that it is busy."""

REASONS = {
    "no_release": "No release is promoted: `scripts/promote.py` gives one to the agents.",
    "not_calibrated": "What confidence means for this release is not known yet: run `scripts/calibrate_advice.py`.",
    "not_precise": "No threshold reaches the wanted precision with what is known so far.",
    "low_confidence": "The model is not sure enough here.",
    "no_proposal": "The model said nothing.",
    "model_unavailable": "The model did not answer in time: is it served?",
    "busy": "Too many questions at once: ask again.",
    "control": "Drawn to get no advice, so that its worth can be measured.",
}
"""Why there is no proposal."""


@dataclass(frozen=True, slots=True)
class AdviceQuestion:
    """What an agent sees, and in which hour. ``is_vouched``: the game itself asks."""

    agent_id: str
    messages: Sequence[ChatMessage]
    window_id: str
    asked_by: str
    is_vouched: bool


OpenModel = Callable[[Promotion, float], ChatModel]
"""The model of a promotion behind its endpoint, which has so many seconds to answer."""


@dataclass(slots=True)
class Advisor:
    """One for a console; opens the endpoint of a release when it is first asked."""

    database: Database
    model: str
    settings: AdvisorSettings
    open_model: OpenModel
    world: World = MARKET
    _models: dict[tuple[str, str], ChatModel] = field(default_factory=dict)
    _in_hand: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting: int = 0

    async def advise(self, question: AdviceQuestion) -> AdviceRow:
        """The answer to ``question``, stored before it is returned."""
        digest = digest_of(self.model, question)
        known = await known_advice(self.database, digest)
        if known is not None:
            return known
        started = time.monotonic()
        promotion = await serving(self.database, self.model)
        new = NewAdvice(
            advice_id=uuid.uuid4().hex,
            digest=digest,
            model=self.model,
            release="" if promotion is None else promotion.release.name,
            agent_id=question.agent_id,
            window_id=question.window_id,
            asked_by=question.asked_by,
            is_vouched=question.is_vouched,
            messages=question.messages,
            state="abstained",
        )
        new = replace(new, reason="no_release") if promotion is None else await self._asked(promotion, new)
        return await store_advice(self.database, replace(new, latency_ms=(time.monotonic() - started) * 1000))

    async def _asked(self, promotion: Promotion, new: NewAdvice) -> NewAdvice:
        proposal, reason = await self._proposal(promotion, new)
        if proposal is None:
            return replace(new, reason=reason)
        found = await newest_calibration(self.database, self.model, new.release, self.settings.advice_precision)
        made = replace(
            new,
            proposal=proposal.text,
            answer=proposal.answer,
            agreement=proposal.agreement,
            likelihood=proposal.likelihood,
            score=proposal.score,
            samples=proposal.samples,
            confidence=None if found is None else found.calibration.confidence(proposal.score),
            threshold=None if found is None else found.calibration.threshold,
            calibration_id=None if found is None else found.calibration_id,
            explanation=explain(proposal, found),
        )
        reason = _why_not(proposal, found)
        if reason:
            return replace(made, reason=reason)
        if is_control(new.digest, self.settings.advice_control):
            return replace(made, state="control", reason="control")
        return replace(made, state="shown")

    async def _proposal(self, promotion: Promotion, new: NewAdvice) -> tuple[Proposal | None, str]:
        """The proposal, or why there is none."""
        if self._waiting >= MOST_AT_ONCE:
            return None, "busy"
        seconds = self.settings.advice_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds), self._turn():
                model = await self._opened(promotion, seconds)
                replies = await model.chat(
                    new.messages,
                    n=self.settings.advice_samples,
                    temperature=1.0,  # log-probabilities are of this one
                    max_tokens=self.settings.advice_tokens,
                    seed=int(new.digest[:7], 16),
                )
        except (BackendError, TimeoutError) as error:
            said = redact(str(error) or type(error).__name__)
            logger.warning("%s gave no advice in window %s: %s", new.release, new.window_id, said)
            return None, "model_unavailable"
        found = proposal_of(replies, self.world)
        return found, "" if found is not None else "no_proposal"

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            await self._in_hand.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._in_hand.release()

    async def _opened(self, promotion: Promotion, seconds: float) -> ChatModel:
        """In a thread, as the first one imports the client, which takes a second: pages go on meanwhile."""
        where = (promotion.base_url, promotion.served_model)
        async with self._opening:
            if where not in self._models:
                self._models[where] = await asyncio.to_thread(self.open_model, promotion, seconds)
        return self._models[where]

    async def close(self) -> None:
        models, self._models = self._models, {}
        await asyncio.gather(*(one.close() for one in models.values()))


def digest_of(model: str, question: AdviceQuestion) -> str:
    """The question's name: whoever asks it again is not asked for another draw."""
    said = msgspec.json.encode([model, question.agent_id, question.window_id, list(question.messages)])
    return hashlib.blake2b(said, digest_size=16).hexdigest()


def is_control(digest: str, share: float) -> bool:
    """Whether this question is drawn to get no advice. Known to nobody before it is asked, and the same ever after."""
    drawn = hashlib.blake2b(f"control:{digest}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64 < share


def _why_not(proposal: Proposal, found: StoredCalibration | None) -> str:
    if found is None:
        return "not_calibrated"
    if found.calibration.threshold is None:
        return "not_precise"
    return "" if found.calibration.shows(proposal.score) else "low_confidence"


def explain(proposal: Proposal, found: StoredCalibration | None) -> str:
    """Where the confidence comes from, in one sentence."""
    same = round(proposal.agreement * proposal.samples)
    said = f"{same} of {proposal.samples} replies choose {proposal.answer}"
    if proposal.likelihood is not None:
        said += f", at a mean probability of {proposal.likelihood:.2f} per token"
    if found is None:
        return f"{said}; how often that is right is not known yet."
    share, calibration = found.calibration.confidence(proposal.score), found.calibration
    return (
        f"{said}; of earlier proposals like this {share:.0%} were right "
        f"({calibration.labels} windows since {calibration.since})."
    )
