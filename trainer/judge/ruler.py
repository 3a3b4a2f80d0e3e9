"""The LLM judge: RULER with the ground truth.

Each group is judged in several orders, each with new ids; the scores are matched by id, checked and averaged. If a
reply cannot be used, the judge is told why and asked once more; a failed call is retried later. If that fails too, the
result is a failure with its reason: there is no default score.

One member's text can make a provider's filter, or the judge itself, refuse the whole group. Then ``offenders`` looks
for it: those who are refused even alone are left out, and the others are judged. Each part is asked about as a group of
its own and its answer stored, so the search is never paid for twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

from data_bridge.errors import HindsightError
from data_bridge.models import DECISIONS
from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.judge.client import CallFailed, Endpoint, JudgeReply
from trainer.judge.cost import Price
from trainer.judge.limits import Budget, Limiter, OverBudget, Retry
from trainer.judge.offenders import AtFault, Members, NoVerdict, Search, Unanswered
from trainer.judge.prompt import BadReply, FittedGroup, OverContext, Prompt, Rubric, fit, orders, parse
from trainer.judge.sound import without_faulty_rows
from trainer.judge.view import GroupView, view_of
from trainer.ledger.verdicts import (
    MAX_REPLIES,
    Call,
    CallResult,
    JudgedTrajectory,
    Judgement,
    JudgeQuestion,
    VerdictStore,
)
from trainer.types import MIN_GROUP, Group, JudgedGroup, JudgeFailure, JudgeIdentity, JudgeUsage, Verdict

logger = logging.getLogger(__name__)

_LENGTHS = 3  # of a prompt that the endpoint finds too long: the whole, half of it, a quarter
_POLL_SECONDS = 0.5  # while another process requests the verdict


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
    _is_answering: bool | None = None
    """Whether there was a usable reply since a group was last searched without any; None before the first of either."""
    _searching: asyncio.Lock = field(default_factory=asyncio.Lock)
    _undercount: float = 1.0
    """The largest ratio so far of the endpoint's count of prompt tokens to our estimate."""
    _chance: random.Random = field(default_factory=random.Random)

    @without_faulty_rows(view_of)
    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        """One verdict per trajectory, or why there is none. Raises only errors that make all judging pointless."""
        bill, rest, left_out = _Bill(), group, list[Exclusion]()
        failure: NoVerdict | None = None
        while failure is None:
            may_search = all(one.reason is not Reason.JUDGE_FILTERED for one in left_out)
            try:
                return replace(await self._judge(rest, bill, may_search=may_search), left_out=tuple(left_out))
            except AtFault as fault:
                out = [one for one in rest.trajectories if one.trajectory_id in fault.members]
                left_out += [exclusion_of(one, fault.reason, fault.detail) for one in out]
                logger.info("window %s: judged without %s: %s", group.window_id, fault.members, fault.detail)
                rest = replace(rest, trajectories=tuple(one for one in rest.trajectories if one not in out))
                if len(rest.trajectories) < MIN_GROUP:
                    failure = fault
            except NoVerdict as error:
                failure = error
        self.usage.count_failure(failure.reason)
        logger.info("window %s: no verdict on group %s: %s", group.window_id, group.group_id, failure.detail)
        return JudgeFailure(group, failure.reason, failure.detail, cost_usd=bill.usd)

    async def _judge(self, group: Group, bill: _Bill, *, may_search: bool) -> JudgedGroup:
        """The verdict on all members of ``group``; AtFault names those without whom there may be one."""
        view = view_of(group, self.purposes)
        key = view.key(self.identity, self.purpose)
        known = await self.store.load(key)
        missing = [number for number in range(self.orders) if number not in known]
        if missing:
            if may_search and await self.store.is_unanswered(key):
                await self._remember_offenders(view, bill)
            try:
                known |= await self._ask_missing(view, key, missing, bill)
            except Unanswered as failure:
                if may_search:
                    await self._find_offenders(view, bill, failure)
                raise
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

    async def _remember_offenders(self, view: GroupView, bill: _Bill) -> None:
        """AtFault if an earlier process found out, at least in part, who is refused; returns if there is no telling.

        A judge that answered to no part of the group may have been at fault itself: it is asked again.
        """
        members = [shown.trajectory for shown in view.trajectories]
        search = Search(partial(self._is_answered, view.group, bill, asks=False))
        await search.within(members)
        if search.answered and search.unknown:
            search = Search(partial(self._is_answered, view.group, bill, asks=True))
            await search.within(members)
        if search.answered and search.refused:
            raise AtFault(Reason.JUDGE_FILTERED, "the judge has refused to answer about it", search.refused)

    async def _find_offenders(self, view: GroupView, bill: _Bill, failure: Unanswered) -> None:
        """AtFault if some members of a refused group are refused alone and others are not; returns if it is all.

        A content filter refuses without pay. Otherwise, while a judge answers nothing at all, one group is searched.
        """
        search = Search(partial(self._is_answered, view.group, bill, asks=True, believes=False))
        async with AsyncExitStack() as stack:
            if failure.reason is not Reason.JUDGE_FILTERED and not self._is_answering:
                await stack.enter_async_context(self._searching)
                if self._is_answering is False:
                    return
                if self._is_answering:
                    await stack.aclose()
            await search.within([shown.trajectory for shown in view.trajectories])
            if not search.answered:
                self._is_answering = False
        if search.answered and search.refused:
            raise AtFault(Reason.JUDGE_FILTERED, failure.detail, search.refused)

    async def _is_answered(
        self, group: Group, bill: _Bill, members: Members, *, asks: bool, believes: bool = True
    ) -> bool | None:
        """Whether the judge answers about these members of ``group`` by themselves; None if only asking would tell.

        An answer that is stored counts, a refusal only if it ``believes`` it.
        """
        part = replace(group, group_id=f"{group.group_id}/part", trajectories=tuple(members))
        view = view_of(part, self.purposes)
        key = view.key(self.identity, self.purpose)
        if await self.store.load(key):
            return True
        if believes and await self.store.is_unanswered(key):
            return False
        if not asks:
            return None
        try:
            await self._ask_missing(view, key, [0], bill)
        except Unanswered:
            return False
        return True

    async def _ask_missing(
        self, view: GroupView, key: str, missing: Sequence[int], bill: _Bill
    ) -> dict[int, Judgement]:
        """The judgements in the ``missing`` orders. A prompt that the endpoint finds too long is shortened; if that
        does not help, the longest member is at fault."""
        fitted = self._fit(view, self.context_tokens)
        for _ in range(_LENGTHS):
            try:
                return await self._ask_orders(view, key, missing, fitted, bill)
            except NoVerdict as failure:
                if failure.reason is not Reason.OVER_CONTEXT:
                    raise
                fault = failure.detail
            try:
                fitted = self._fit(view, fitted.prompt_tokens // 2)
            except NoVerdict:
                break
        longest = max(range(len(fitted.bodies)), key=lambda place: len(fitted.bodies[place]))
        raise AtFault(Reason.OVER_CONTEXT, fault, {view.trajectories[longest].trajectory.trajectory_id})

    def _fit(self, view: GroupView, context: int) -> FittedGroup:
        try:
            fitted = fit(view, self.rubric, context)
        except OverContext as over:
            detail = f"the decisions alone need more than --judge-context {self.context_tokens} tokens"
            if over.members:
                raise AtFault(Reason.OVER_CONTEXT, detail, over.members) from None
            raise NoVerdict(Reason.OVER_CONTEXT, detail) from None
        if fitted.shortened:
            self.usage.count_cut(fitted.shortened, fitted.characters_cut)
        return fitted

    async def _ask_orders(
        self, view: GroupView, key: str, missing: Sequence[int], fitted: FittedGroup, bill: _Bill
    ) -> dict[int, Judgement]:
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
        for failure in sorted(failed, key=lambda failure: isinstance(failure, NoVerdict)):
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
        for _ in range(MAX_REPLIES):
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
            self._is_answering = True
            return judgement
        raise Unanswered(Reason.JUDGE_BAD_REPLY, f"the judge's reply could not be used: {fault}")

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
                raise NoVerdict(Reason.OVER_BUDGET, detail) from None
            except CallFailed as failure:
                # First what the calls that wait for this slot must know, then the slower recording.
                self._stopped_by = self._stopped_by or failure.fatal
                if failure.result is CallResult.BUSY:
                    self.limiter.busy(started)
                await self._record_failure(question, asked, fitted, failure, bill)
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
