"""The LLM judge: RULER with the ground truth.

Each group is judged in several orders, each with new ids; the scores are matched by id, checked and averaged. If a
reply cannot be used, the judge is told why and asked once more; a failed call is retried later. If that fails too, the
result is a failure with its reason: there is no default score.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from data_bridge.errors import HindsightError
from data_bridge.models import DECISIONS
from data_bridge.quality import Reason
from trainer.judge.client import CallFailed, Endpoint, JudgeReply
from trainer.judge.cost import Price
from trainer.judge.limits import Budget, Limiter, OverBudget, Retry
from trainer.judge.prompt import BadReply, FittedGroup, OverContext, Prompt, Rubric, fit, orders, parse
from trainer.judge.sound import without_faulty_rows
from trainer.judge.view import GroupView, view_of
from trainer.ledger.verdicts import Call, CallResult, JudgedTrajectory, Judgement, JudgeQuestion, VerdictStore
from trainer.types import Group, JudgedGroup, JudgeFailure, JudgeIdentity, JudgeUsage, Verdict

logger = logging.getLogger(__name__)

_MAX_REPLIES = 2  # requested for one usable reply
_POLL_SECONDS = 0.5  # while another process requests the verdict


class _NoVerdict(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class _Bill:
    """What one group cost in this run."""

    usd: float = 0.0


@dataclass(slots=True)
class LlmJudge:
    """Judges groups through ``endpoint``. Calls may be concurrent; created by ``open_judge``."""

    identity: JudgeIdentity
    rubric: Rubric
    endpoint: Endpoint
    store: VerdictStore
    orders: int
    context_tokens: int
    reply_tokens: int
    price: Price | None
    budget: Budget
    limiter: Limiter
    """Limits the calls in flight."""
    claims: Limiter
    """Limits the questions being prepared, asked or stored: enough that a free slot never waits for a prompt, but not
    all of them, so that another host finds unclaimed ones."""
    retry: Retry
    purposes: tuple[str, ...] = DECISIONS
    """The purposes of the calls that make decisions."""
    purpose: str = ""
    """Part of the key: the same group under another purpose is judged again."""
    usage: JudgeUsage = field(default_factory=JudgeUsage)
    _stopped_by: HindsightError | None = None
    _undercount: float = 1.0
    """The largest ratio so far of the endpoint's count of prompt tokens to our estimate."""
    _chance: random.Random = field(default_factory=random.Random)

    @without_faulty_rows(view_of)
    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        """One verdict per trajectory, or why there is none. Raises only errors that make all judging pointless."""
        view = view_of(group, self.purposes)
        key = view.key(self.identity, self.purpose)
        bill = _Bill()
        try:
            known = await self.store.load(key)
            missing = [number for number in range(self.orders) if number not in known]
            if missing:
                known |= await self._ask_missing(view, key, missing, bill)
        except _NoVerdict as failure:
            self.usage.count_failure(failure.reason)
            logger.info("window %s: no verdict on group %s: %s", group.window_id, group.group_id, failure.detail)
            return JudgeFailure(group, failure.reason, failure.detail, cost_usd=bill.usd)
        self.usage.count_group(cached=not missing)
        return JudgedGroup(
            group=group,
            verdicts=_verdicts(view, [known[number] for number in range(self.orders)]),
            identity=self.identity,
            verdict_key=key,
            cost_usd=bill.usd,
            cached=not missing,
        )

    async def close(self) -> None:
        await self.endpoint.close()

    async def _ask_missing(
        self, view: GroupView, key: str, missing: Sequence[int], bill: _Bill
    ) -> dict[int, Judgement]:
        try:
            fitted = fit(view, self.rubric, self.context_tokens)
        except OverContext:
            detail = f"the decisions alone need more than --judge-context {self.context_tokens} tokens"
            raise _NoVerdict(Reason.OVER_CONTEXT, detail) from None
        if fitted.shortened:
            self.usage.count_cut(fitted.shortened, fitted.characters_cut)
        # Not from ``key``: under another purpose exactly the same question is asked again.
        listings = orders(len(view.trajectories), self.orders, view.key(self.identity))
        # Wait for all orders, even if one of them fails: their calls are paid for.
        where = (view.group.window_id, view.group.group_id)
        heard = await asyncio.gather(
            *(
                self._settle(JudgeQuestion(key, number, *where, self.identity), fitted, listings[number], bill)
                for number in missing
            ),
            return_exceptions=True,
        )
        failed = [result for result in heard if isinstance(result, BaseException)]
        for failure in sorted(failed, key=lambda failure: isinstance(failure, _NoVerdict)):
            raise failure
        return {number: result for number, result in zip(missing, heard, strict=True) if isinstance(result, Judgement)}

    async def _settle(self, question: JudgeQuestion, fitted: FittedGroup, listing: list[int], bill: _Bill) -> Judgement:
        """Ask, unless another process is asking: then wait for its verdict, or for its claim to expire."""
        while True:
            async with self.claims.slot():
                is_ours, known = await self.store.claim(question)
                try:
                    if known is not None:
                        return known
                    if is_ours:
                        return await self._ask(question, fitted, listing, bill)
                finally:
                    if is_ours:
                        await self.store.release(question)
            await asyncio.sleep(_POLL_SECONDS)

    async def _ask(self, question: JudgeQuestion, fitted: FittedGroup, listing: list[int], bill: _Bill) -> Judgement:
        fault: str | None = None
        for _ in range(_MAX_REPLIES):
            asked = fitted.prompt(listing, secrets.token_bytes(16), fault)
            answer = await self._answer(question, asked, fitted, bill)
            cost = self._cost(answer.prompt_tokens, answer.completion_tokens)
            call = Call(
                CallResult.OK,
                asked.prompt_hash,
                answer.latency_ms,
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                tokens_estimated=answer.tokens_estimated,
                cost_usd=cost,
            )
            try:
                if answer.fault is not None:
                    raise BadReply(answer.fault)
                scores = parse(answer.text, asked.ids)
            except BadReply as bad:
                fault = str(bad)
                await self.store.record_call(question, replace(call, result=CallResult.BAD_REPLY, fault=fault))
                continue
            judged = tuple(
                JudgedTrajectory(view.digest, view.trajectory.trajectory_id, score.score, score.explanation)
                for view, score in zip(fitted.view.trajectories, scores, strict=True)
            )
            judgement = Judgement(
                scores=judged,
                prompt_hash=asked.prompt_hash,
                prompt_tokens=answer.prompt_tokens,
                completion_tokens=answer.completion_tokens,
                cost_usd=cost,
                characters_cut=fitted.characters_cut,
            )
            await self.store.store(question, judgement, call)
            return judgement
        raise _NoVerdict(Reason.JUDGE_BAD_REPLY, f"the judge's reply could not be used: {fault}")

    async def _answer(self, question: JudgeQuestion, asked: Prompt, fitted: FittedGroup, bill: _Bill) -> JudgeReply:
        """The endpoint's answer, after as many attempts as the rule allows. Every failed call is recorded here."""
        failures = 0
        while True:
            started = float("inf")
            try:
                async with self.limiter.slot(), self.budget.set_aside(self._worst_case(fitted)):
                    if self._stopped_by is not None:
                        raise self._stopped_by
                    started = time.monotonic()
                    answer = await self.endpoint.send(asked)
                    self._book(answer.prompt_tokens, answer.completion_tokens, bill)
                    self._undercount = max(self._undercount, answer.prompt_tokens / fitted.prompt_tokens)
                    self.limiter.answered()
                return answer
            except asyncio.CancelledError:
                if started < float("inf"):
                    given_up = CallFailed(CallResult.TIMEOUT, "given up before the answer came", may_be_billed=True)
                    given_up.latency_ms = (time.monotonic() - started) * 1000
                    await asyncio.shield(self._record_failure(question, asked, fitted, given_up, bill))
                raise
            except OverBudget:
                detail = f"one more call could exceed --max-cost {self.budget.ceiling:g} dollars"
                raise _NoVerdict(Reason.OVER_BUDGET, detail) from None
            except CallFailed as failure:
                # First what the calls that wait for this slot must know, then the slower recording.
                self._stopped_by = self._stopped_by or failure.fatal
                if failure.result is CallResult.BUSY:
                    self.limiter.busy(started)
                await self._record_failure(question, asked, fitted, failure, bill)
                if failure.fatal is not None:
                    raise failure.fatal from failure
                if failure.reason is not None:
                    raise _NoVerdict(failure.reason, failure.fault) from failure
                if failure.again:
                    continue
                failures += 1
                if failures >= self.retry.attempts:
                    detail = f"no answer after {failures} attempt{'s' if failures != 1 else ''}: {failure.fault}"
                    raise _NoVerdict(Reason.JUDGE_UNAVAILABLE, detail) from failure
                await asyncio.sleep(self.retry.delay(failures, failure.retry_after, self._chance))

    async def _record_failure(
        self, question: JudgeQuestion, asked: Prompt, fitted: FittedGroup, failure: CallFailed, bill: _Bill
    ) -> None:
        """Record a failed call. If it may be billed and the endpoint reports no usage, our estimate counts."""
        call = Call(failure.result, asked.prompt_hash, failure.latency_ms, fault=failure.fault)
        if failure.used is not None:
            call = replace(call, prompt_tokens=failure.used.prompt, completion_tokens=failure.used.completion)
        elif failure.may_be_billed:
            call = replace(call, prompt_tokens=fitted.prompt_tokens, tokens_estimated=True)
        call = replace(call, cost_usd=self._cost(call.prompt_tokens, call.completion_tokens))
        self._book(call.prompt_tokens, call.completion_tokens, bill)
        await self.store.record_call(question, call)

    def _book(self, prompt_tokens: int, completion_tokens: int, bill: _Bill) -> None:
        usd = self._cost(prompt_tokens, completion_tokens)
        bill.usd += usd
        self.budget.pay(usd)
        self.usage.count_call(prompt_tokens, completion_tokens, usd)

    def _worst_case(self, fitted: FittedGroup) -> float:
        return self._cost(math.ceil(fitted.prompt_tokens * self._undercount), self.reply_tokens)

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return 0.0 if self.price is None else self.price.cost(prompt_tokens, completion_tokens)


def _verdicts(view: GroupView, judgements: Sequence[Judgement]) -> tuple[Verdict, ...]:
    """Average over the orders, by content: stored scores may belong to the same content with other trajectory ids."""
    columns = [
        sorted(judgement.scores, key=lambda scored: (scored.content, scored.trajectory_id)) for judgement in judgements
    ]
    found: dict[str, Verdict] = {}
    for place, shown in enumerate(view.trajectories):
        heard = [column[place] for column in columns]
        scores = [scored.score for scored in heard]
        explanations = dict.fromkeys(scored.explanation for scored in heard if scored.explanation)
        found[shown.trajectory.trajectory_id] = Verdict(
            trajectory_id=shown.trajectory.trajectory_id,
            score=fmean(scores),
            uncertainty=(max(scores) - min(scores)) / 2,
            explanation="\n".join(explanations),
        )
    return tuple(found[trajectory.trajectory_id] for trajectory in view.group.trajectories)
