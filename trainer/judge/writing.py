"""A text from the judge's model instead of a verdict: paid for, limited and recorded as a verdict's call is."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from trainer.judge.calls import Bill, PaidCalls
from trainer.judge.offenders import NoVerdict
from trainer.judge.prompt import Prompt
from trainer.judge.text import count_tokens
from trainer.ledger.verdicts import JudgeQuestion
from trainer.types import JudgeIdentity

logger = logging.getLogger(__name__)

_FIXED_TOKENS = 16
"""Of a request beside its two messages."""


@dataclass(frozen=True, slots=True)
class PaidText:
    calls: PaidCalls
    identity: JudgeIdentity

    @property
    def name(self) -> str:
        return self.identity.judge

    async def ask(self, system: str, user: str) -> str | None:
        """The reply; None if there is none to be had, it was cut off, or one more call could exceed the ceiling."""
        digest = hashlib.blake2b(f"{system}\x1f{user}".encode(), digest_size=16).hexdigest()
        asked = Prompt(system, user, (), digest, count_tokens(system + user) + _FIXED_TOKENS)
        question = JudgeQuestion(f"writing/{digest}", 0, "", "prompts", self.identity)
        try:
            answer = await self.calls.answer(question, asked, Bill())
        except NoVerdict as failure:
            logger.warning("%s wrote nothing: %s", self.name, failure.detail)
            return None
        await self.calls.store.record_call(question, self.calls.record_of(asked, answer))
        return None if answer.fault is not None else answer.text
