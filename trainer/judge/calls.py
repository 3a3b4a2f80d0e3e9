"""Calls that are paid for: each within the limits and the budget, retried by the rule, recorded with what it cost."""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass, field, replace

from data_bridge.errors import HindsightError
from data_bridge.quality import Reason
from trainer.judge.client import CallFailed, Endpoint, JudgeReply, Tokens
from trainer.judge.cost import Price
from trainer.judge.limits import Budget, Limiter, OverBudget, Retry
from trainer.judge.offenders import NoVerdict, Unanswered
from trainer.judge.prompt import Prompt
from trainer.ledger.verdicts import Call, CallResult, JudgeQuestion, VerdictStore
from trainer.progress import JudgeUsage


@dataclass(slots=True)
class Bill:
    """What one group cost in this run."""

    usd: float = 0.0


@dataclass(slots=True)
class PaidCalls:
    """The only way to the endpoint. Calls may be concurrent."""

    endpoint: Endpoint
    store: VerdictStore
    reply_tokens: int
    price: Price | None
    budget: Budget
    limiter: Limiter
    """Limits the calls in flight."""
    retry: Retry
    usage: JudgeUsage = field(default_factory=JudgeUsage)
    _stopped_by: HindsightError | None = None
    _undercount: float = 1.0
    """The largest ratio so far of the endpoint's count of prompt tokens to our estimate."""
    _chance: random.Random = field(default_factory=random.Random)

    async def answer(self, question: JudgeQuestion, asked: Prompt, bill: Bill) -> JudgeReply:
        """The endpoint's answer, after as many attempts as the rule allows. Every failed call is recorded here."""
        failures = 0
        while True:
            started = float("inf")
            try:
                async with self.limiter.slot(), self.budget.set_aside(self._worst_case(asked)):
                    if self._stopped_by is not None:
                        raise self._stopped_by
                    started = time.monotonic()
                    answer = await self.endpoint.send(asked)
                    self._book(answer.used, bill)
                    self._undercount = max(self._undercount, answer.used.prompt / asked.prompt_tokens)
                    self.limiter.answered()
                return answer
            except asyncio.CancelledError:
                if started < float("inf"):
                    given_up = CallFailed(CallResult.TIMEOUT, "given up before the answer came", may_be_billed=True)
                    given_up.latency_ms = (time.monotonic() - started) * 1000
                    await asyncio.shield(self._record_failure(question, asked, given_up, bill))
                raise
            except OverBudget:
                detail = f"one more call could exceed --max-cost {self.budget.ceiling:g} dollars"
                raise NoVerdict(Reason.OVER_BUDGET, detail) from None
            except CallFailed as failure:
                # First what the calls that wait for this slot must know, then the slower recording.
                self._stopped_by = self._stopped_by or failure.fatal
                if failure.result is CallResult.BUSY:
                    self.limiter.busy(started)
                await self._record_failure(question, asked, failure, bill)
                if failure.fatal is not None:
                    raise failure.fatal from failure
                if failure.result is CallResult.FILTERED and failure.reason is not None:
                    raise Unanswered(failure.reason, failure.fault) from failure
                if failure.reason is not None:
                    raise NoVerdict(failure.reason, failure.fault) from failure
                if failure.again:
                    continue
                failures += 1
                if failures >= self.retry.attempts:
                    detail = f"no answer after {failures} attempt{'s' if failures != 1 else ''}: {failure.fault}"
                    raise NoVerdict(Reason.JUDGE_UNAVAILABLE, detail) from failure
                await asyncio.sleep(self.retry.delay(failures, failure.retry_after, self._chance))

    def record_of(self, asked: Prompt, answer: JudgeReply) -> Call:
        """An answered call as it is stored, with what it cost."""
        return Call(
            CallResult.OK,
            asked.prompt_hash,
            answer.latency_ms,
            prompt_tokens=answer.used.prompt,
            completion_tokens=answer.used.completion,
            cached_tokens=answer.used.cached,
            tokens_estimated=answer.tokens_estimated,
            cost_usd=self._cost(answer.used),
        )

    async def _record_failure(self, question: JudgeQuestion, asked: Prompt, failure: CallFailed, bill: Bill) -> None:
        """Record a failed call. If it may be billed and the endpoint reports no usage, our estimate counts."""
        used = failure.used or Tokens(asked.prompt_tokens if failure.may_be_billed else 0, 0)
        self._book(used, bill)
        call = Call(failure.result, asked.prompt_hash, failure.latency_ms, fault=failure.fault)
        call = replace(
            call,
            prompt_tokens=used.prompt,
            completion_tokens=used.completion,
            cached_tokens=used.cached,
            tokens_estimated=failure.used is None and failure.may_be_billed,
            cost_usd=self._cost(used),
        )
        await self.store.record_call(question, call)

    def _book(self, used: Tokens, bill: Bill) -> None:
        usd = self._cost(used)
        bill.usd += usd
        self.budget.pay(usd)
        self.usage.count_call(used.prompt, used.completion, used.cached, usd)

    def _worst_case(self, asked: Prompt) -> float:
        """Nothing may come from the cache, and the reply may be as long as it can be."""
        return self._cost(Tokens(math.ceil(asked.prompt_tokens * self._undercount), self.reply_tokens))

    def _cost(self, used: Tokens) -> float:
        return 0.0 if self.price is None else self.price.cost(used.prompt, used.completion, used.cached)
