"""Examines judges whose faults are known, as a real one is examined: they read the prompt and answer with JSON.

Only the network is left out: the judge is ``LlmJudge`` with its views, prompts, orders, ids and checks of the reply.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from tests.builders_judge import judge_settings
from tests.fakes.judge_server import Request, Scorer, entries
from trainer.certify.examine import Examiners, examine
from trainer.certify.material import simulated
from trainer.certify.measures import lines_of
from trainer.judge.client import Endpoint, JudgeReply
from trainer.judge.limits import Budget, Limiter, Retry
from trainer.judge.open import identity_of
from trainer.judge.prompt import Prompt, load_rubric
from trainer.judge.ruler import LlmJudge
from trainer.ledger.certificates import Line
from trainer.ledger.verdicts import MemoryVerdicts

GROUPS, AGENTS = 36, 6
"""The command's defaults."""


class InProcess:
    """An endpoint that answers from the text of the prompt alone."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    async def send(self, prompt: Prompt) -> JudgeReply:
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt.user}]
        scores = self.scorer(Request({}, {"messages": messages}))
        return JudgeReply(json.dumps({"scores": entries(scores)}), None, 1000, 100, False, 0.0)


def examined_in_process(scorer: Scorer, seed: int) -> tuple[Sequence[Line], int]:
    """The lines of the certificate of a judge that scores so, and the number of calls."""
    settings, store = judge_settings(), MemoryVerdicts()
    endpoint = cast("Endpoint", InProcess(scorer))

    def opened(orders: int, purpose: str) -> LlmJudge:
        return LlmJudge(
            identity=identity_of(settings),
            rubric=load_rubric(settings.rubric),
            endpoint=endpoint,
            store=store,
            orders=orders,
            context_tokens=settings.judge_context,
            reply_tokens=settings.judge_reply_tokens,
            price=None,
            budget=Budget(None, spent=0.0),
            limiter=Limiter(8),
            claims=Limiter(16),
            retry=Retry(attempts=1),
            purpose=purpose,
        )

    examiners = Examiners(opened(1, "certify"), opened(2, "certify"), opened(1, "certify again"))
    asked = asyncio.run(examine(examiners, simulated(GROUPS, AGENTS, seed)))
    return lines_of(asked), examiners.calls
