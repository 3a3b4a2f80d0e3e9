"""Calls that are paid for: each within the limits and the budget, retried by the rule, recorded with what it cost."""

from __future__ import annotations

import asyncio
import math
import random
import time
from dataclasses import dataclass, field, replace

from data_bridge.errors import HindsightError, JudgeError
from data_bridge.quality import Reason
from trainer.judge.client import CallFailed, Endpoint, JudgeReply, Tokens
from trainer.judge.cost import Price
from trainer.judge.limits import Budget, Limiter, OverBudget, Retry
from trainer.judge.offenders import NoVerdict, Unanswered
from trainer.judge.prompt import Prompt
from trainer.ledger.verdicts import Call, CallResult, JudgeQuestion, VerdictStore
from trainer.probed import ProbedServer, ServerSilent
from trainer.progress import JudgeUsage


@dataclass(slots=True)
class Bill:
    """What one group cost in this run."""

    usd: float = 0.0


class _Silent(CallFailed):
    """Neither the call nor a probe was answered for so long that the endpoint is gone."""


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
    server: ProbedServer | None = None
    """The endpoint's server, to tell a slow one from one that is gone."""
    usage: JudgeUsage = field(default_factory=JudgeUsage)
    _stopped_by: HindsightError | None = None
    _undercount: float = 1.0
    """The largest ratio so far of the endpoint's count of prompt tokens to our estimate."""
    _chance: random.Random = field(default_factory=random.Random)
    _cut_since: float | None = None
    """Since when every call has ended without a connection."""

    async def answer(self, question: JudgeQuestion, asked: Prompt, bill: Bill) -> JudgeReply:
        """The endpoint's answer, after as many attempts as the rule allows. Every failed call is recorded here.

        An endpoint that no call reaches is waited for beyond these attempts, and given up for all calls when it is
        gone: one that is slow or busy is neither.
        """
        failures = 0
        while True:
            started = float("inf")
            try:
                async with self.limiter.slot(), self.budget.set_aside(self._worst_case(asked)):
                    if self._stopped_by is not None:
                        raise self._stopped_by
                    started = time.monotonic()
                    answer = await self._sent(asked)
                    self._book(answer.used, bill)
                    self._undercount = max(self._undercount, answer.used.prompt / asked.prompt_tokens)
                    self.limiter.answered()
                    self._cut_since = None
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
                silent = self._silence_after(failure, started)
                if silent >= self.retry.gone_after:
                    failure.fatal = self._gone(question, failure, silent)
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
                if failure.is_cut and not failure.may_be_billed and self._cut_since is not None:
                    await asyncio.sleep(self.retry.delay_unreached(failures, silent))
                    continue
                if failures >= self.retry.attempts:
                    detail = f"no answer after {failures} attempt{'s' if failures != 1 else ''}: {failure.fault}"
                    raise NoVerdict(Reason.JUDGE_UNAVAILABLE, detail) from failure
                await asyncio.sleep(self.retry.delay(failures, failure.retry_after, self._chance))

    async def _sent(self, asked: Prompt) -> JudgeReply:
        if self.server is None:
            return await self.endpoint.send(asked)
        started = time.monotonic()
        try:
            return await self.server.answer(lambda: self.endpoint.send(asked))
        except ServerSilent as error:
            fault = f"neither a call nor a probe was answered for {self.server.gone_after:g} s"
            failure = _Silent(CallResult.TIMEOUT, fault, may_be_billed=True)
            failure.latency_ms = (time.monotonic() - started) * 1000
            raise failure from error

    def _silence_after(self, failure: CallFailed, started: float) -> float:
        """Seconds for which no call has reached the endpoint, this one included; 0 if this one has."""
        now = time.monotonic()
        if isinstance(failure, _Silent):
            return self.retry.gone_after
        if failure.is_cut:
            self._cut_since = now if self._cut_since is None else self._cut_since
            return now - self._cut_since
        was_reached_before = failure.result is CallResult.TIMEOUT and started < (self._cut_since or 0.0)
        if not was_reached_before:
            self._cut_since = None
        return 0.0

    def _gone(self, question: JudgeQuestion, failure: CallFailed, silent: float) -> JudgeError:
        return JudgeError(
            f"The judge is gone: group {question.group_id} of window {question.window_id} waits for it, and no call "
            f"has reached it for {silent:.0f} s ({failure.fault}); check JUDGE_BASE_URL, then run the same command "
            "again, which resumes: verdicts already paid for are kept."
        )

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
