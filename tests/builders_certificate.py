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
from trainer.judge.adaptive import OrderRule
from trainer.judge.calls import PaidCalls
from trainer.judge.client import Endpoint, JudgeReply, Tokens
from trainer.judge.limits import Budget, Limiter, Retry
from trainer.judge.open import identity_of
from trainer.judge.prompt import Prompt, load_rubric
from trainer.judge.ruler import LlmJudge
from trainer.ledger.certificates import Line
from trainer.ledger.order_decisions import MemoryDecisions
from trainer.ledger.verdicts import MemoryVerdicts

GROUPS, AGENTS = 36, 6
"""The command's defaults."""


class InProcess:
    """An endpoint that answers from the text of the prompt alone."""

    def __init__(self, scorer: Scorer, corrector: Scorer | None = None) -> None:
        self.scorer = scorer
        self.corrector = corrector

    async def send(self, prompt: Prompt) -> JudgeReply:
        messages: list[dict[str, Any]] = [{"content": prompt.system}, {"content": prompt.user}]
        request = Request({}, {"messages": messages})
        corrections = self.corrector(request) if self.corrector is not None and prompt.with_correction else None
        scores = entries(self.scorer(request), corrections)
        return JudgeReply(json.dumps({"scores": scores}), None, Tokens(prompt.prompt_tokens, 100), False, 0.0)


def judge_in_process(
    scorer: Scorer,
    store: MemoryVerdicts,
    *,
    orders: int,
    adaptive: bool = False,
    purpose: str = "",
    passes: int = 1,
    corrector: Scorer | None = None,
) -> LlmJudge:
    """The LLM judge of a model that scores so."""
    settings = judge_settings(judge_passes=passes)
    return LlmJudge(
        identity=identity_of(settings),
        rubric=load_rubric(settings.rubric),
        calls=PaidCalls(
            endpoint=cast("Endpoint", InProcess(scorer, corrector)),
            store=store,
            reply_tokens=settings.judge_reply_tokens,
            price=None,
            budget=Budget(None, spent=0.0),
            limiter=Limiter(8),
            retry=Retry(attempts=1),
        ),
        store=store,
        orders=OrderRule(orders, adaptive=adaptive, decisions=MemoryDecisions()),
        context_tokens=settings.judge_context,
        claims=Limiter(16),
        purpose=purpose,
        passes=passes,
        skips_equal=adaptive,
    )


def examined_in_process(
    scorer: Scorer, seed: int, passes: int = 1, corrector: Scorer | None = None
) -> tuple[Sequence[Line], int]:
    """The lines of the certificate of a judge that scores so, and the number of calls."""
    store = MemoryVerdicts()

    def opened(orders: int, purpose: str) -> LlmJudge:
        return judge_in_process(scorer, store, orders=orders, purpose=purpose, passes=passes, corrector=corrector)

    examiners = Examiners(opened(1, "certify"), opened(2, "certify"), opened(1, "certify again"))
    asked = asyncio.run(examine(examiners, simulated(GROUPS, AGENTS, seed)))
    return lines_of(asked), examiners.calls
