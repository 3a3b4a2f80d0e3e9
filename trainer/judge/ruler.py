"""The LLM judge: RULER with the ground truth.

Each group is judged in as many orders as it takes (``adaptive``), each with new ids; the scores are matched by id,
checked and averaged. If a reply cannot be used, the judge is told why and asked once more; a failed call is retried
later (``calls``). If that fails too, the result is a failure with its reason: there is no default score.

One member's text can make a provider's filter, or the judge itself, refuse the whole group. Then ``offenders`` looks
for it: those who are refused even alone are left out, and the others are judged. Each part is asked about as a group of
its own and its answer stored, so the search is never paid for twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, stdev

from data_bridge.models import DECISIONS
from data_bridge.quality import Exclusion, Reason, exclusion_of
from trainer.judge.adaptive import OrderRule
from trainer.judge.calls import Bill, PaidCalls
from trainer.judge.client import Endpoint
from trainer.judge.limits import Budget, Limiter
from trainer.judge.luck import corrected
from trainer.judge.offenders import AtFault, Members, NoVerdict, Search, Unanswered
from trainer.judge.prompt import FittedGroup, OverContext, Rubric, fit, orders
from trainer.judge.reply import BadReply, Score, parse
from trainer.judge.sound import without_faulty_rows
from trainer.judge.view import GroupView, view_of
from trainer.ledger.verdicts import (
    MAX_REPLIES,
    CallResult,
    JudgedTrajectory,
    Judgement,
    JudgeQuestion,
    VerdictStore,
)
from trainer.progress import JudgeUsage
from trainer.types import MIN_GROUP, Group, JudgedGroup, JudgeFailure, JudgeIdentity, Verdict

logger = logging.getLogger(__name__)

_LENGTHS = 3  # of a prompt that the endpoint finds too long: the whole, half of it, a quarter
_POLL_SECONDS = 0.5  # while another process requests the verdict


@dataclass(slots=True)
class LlmJudge:
    """Judges groups through ``endpoint``. Calls may be concurrent; created by ``open_judge``."""

    identity: JudgeIdentity
    rubric: Rubric
    calls: PaidCalls
    store: VerdictStore
    orders: OrderRule
    context_tokens: int
    claims: Limiter
    """Limits the questions being prepared, asked or stored: enough that a free slot never waits for a prompt, but not
    all of them, so that another host finds unclaimed ones."""
    purposes: tuple[str, ...] = DECISIONS
    """The purposes of the calls that make decisions."""
    purpose: str = ""
    """Part of the key: the same group under another purpose is judged again."""
    passes: int = 1
    """2: the judge first scores the decisions without the outcome, then with it."""
    with_steps: bool = False
    """Whether it is asked for the score of each decision as well as of the whole."""
    skips_equal: bool = False
    """Whether a group whose members all did the same is left out unasked: it can teach nothing."""
    _is_answering: bool | None = None
    """Whether there was a usable reply since a group was last searched without any; None before the first of either."""
    _searching: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def usage(self) -> JudgeUsage:
        return self.calls.usage

    @property
    def budget(self) -> Budget:
        return self.calls.budget

    @property
    def limiter(self) -> Limiter:
        return self.calls.limiter

    @property
    def endpoint(self) -> Endpoint:
        return self.calls.endpoint

    @without_faulty_rows(view_of)
    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        """One verdict per trajectory, or why there is none. Raises only errors that make all judging pointless."""
        if self.skips_equal and view_of(group, self.purposes).is_uniform:
            detail = "all members did the same on the same grounds, with the same result"
            return JudgeFailure(group, Reason.EQUAL_DECISIONS, detail)
        bill, rest, left_out = Bill(), group, list[Exclusion]()
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

    async def _judge(self, group: Group, bill: Bill, *, may_search: bool) -> JudgedGroup:
        """The verdict on all members of ``group``; AtFault names those without whom there may be one."""
        view = view_of(group, self.purposes, self.passes, numbered=self.with_steps)
        key = view.key(self.identity, self.purpose)
        known = await self.store.load(key)
        asked = 0
        async with self.orders.course(key, group.group_id, len(view.trajectories)) as course:
            while wanted := await course.wanted(known):
                known |= await self._ask_or_search(view, wanted, bill, may_search=may_search)
                asked += len(wanted)
        heard = [known[number] for number in range(self.orders.most) if number in known]
        self.usage.count_group(cached=not asked)
        if course.unasked is not None and course.unasked.order_number >= len(heard):
            self.usage.count_unasked(course.unasked.reason, course.unasked.unasked)
        return JudgedGroup(
            group=group,
            verdicts=_verdicts(view, heard, course.order_sd(len(heard))),
            identity=self.identity,
            verdict_key=key,
            cost_usd=bill.usd,
            cached=not asked,
        )

    async def _ask_or_search(
        self, view: GroupView, wanted: Sequence[int], bill: Bill, *, may_search: bool
    ) -> dict[int, Judgement]:
        """The judgements in these orders. If the judge refuses, and ``may_search``: AtFault, if it is somebody's."""
        if may_search and await self._is_unanswered(view):
            await self._remember_offenders(view, bill)
        try:
            return await self._ask_missing(view, wanted, bill)
        except Unanswered as failure:
            if may_search:
                await self._find_offenders(view, bill, failure)
            raise

    async def close(self) -> None:
        await self.endpoint.close()

    async def _remember_offenders(self, view: GroupView, bill: Bill) -> None:
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

    async def _find_offenders(self, view: GroupView, bill: Bill, failure: Unanswered) -> None:
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
        self, group: Group, bill: Bill, members: Members, *, asks: bool, believes: bool = True
    ) -> bool | None:
        """Whether the judge answers about these members of ``group`` by themselves; None if only asking would tell.

        An answer that is stored counts, a refusal only if it ``believes`` it.
        """
        part = replace(group, group_id=f"{group.group_id}/part", trajectories=tuple(members))
        view = view_of(part, self.purposes, self.passes, numbered=self.with_steps)
        key = view.key(self.identity, self.purpose)
        if await self.store.load(key):
            return True
        if believes and await self._is_unanswered(view):
            return False
        if not asks:
            return None
        try:
            await self._ask_missing(view, [0], bill)
        except Unanswered:
            return False
        return True

    async def _is_unanswered(self, view: GroupView) -> bool:
        """Whether the judge has refused this question, in either pass."""
        for shown in (view, view.blind):
            if shown is not None and await self.store.is_unanswered(shown.key(self.identity, self.purpose)):
                return True
        return False

    async def _ask_missing(self, view: GroupView, missing: Sequence[int], bill: Bill) -> dict[int, Judgement]:
        """The judgements in the ``missing`` orders. A prompt that the endpoint finds too long is shortened; if that
        does not help, the longest member is at fault."""
        fitted = self._fit(view, self.context_tokens)
        for _ in range(_LENGTHS):
            try:
                return await self._ask_orders(view, missing, fitted, bill)
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
            fitted = fit(view, self.rubric, context, with_steps=self.with_steps)
        except OverContext as over:
            detail = f"the decisions alone need more than --judge-context {self.context_tokens} tokens"
            if over.members:
                raise AtFault(Reason.OVER_CONTEXT, detail, over.members) from None
            raise NoVerdict(Reason.OVER_CONTEXT, detail) from None
        if fitted.shortened:
            self.usage.count_cut(fitted.shortened, fitted.characters_cut)
        return fitted

    async def _ask_orders(
        self, view: GroupView, missing: Sequence[int], fitted: FittedGroup, bill: Bill
    ) -> dict[int, Judgement]:
        blind = None if view.blind is None else self._fit(view.blind, fitted.prompt_tokens)
        # Wait for all orders, even if one of them fails: their calls are paid for.
        heard = await asyncio.gather(
            *(self._ask_order(number, fitted, blind, bill) for number in missing), return_exceptions=True
        )
        failed = [result for result in heard if isinstance(result, BaseException)]
        for failure in sorted(failed, key=lambda failure: isinstance(failure, NoVerdict)):
            raise failure
        return {number: result for number, result in zip(missing, heard, strict=True) if isinstance(result, Judgement)}

    async def _ask_order(self, number: int, fitted: FittedGroup, blind: FittedGroup | None, bill: Bill) -> Judgement:
        """The judgement in one order; in two passes first without the outcome, and each of them paid for once."""
        if blind is None:
            return await self._settle(self._question(fitted.view, number), fitted, None, bill)
        before = await self._settle(self._question(blind.view, number), blind, None, bill)
        scores = sorted(before.scores, key=lambda scored: (scored.content, scored.trajectory_id))
        by_id = {
            shown.trajectory.trajectory_id: scored
            for shown, scored in zip(blind.view.trajectories, scores, strict=True)
        }
        return await self._settle(self._question(fitted.view, number), fitted, by_id, bill)

    def _question(self, view: GroupView, number: int) -> JudgeQuestion:
        where = (view.group.window_id, view.group.group_id)
        return JudgeQuestion(view.key(self.identity, self.purpose), number, *where, self.identity, view.is_blind)

    async def _settle(
        self, question: JudgeQuestion, fitted: FittedGroup, blind: Mapping[str, JudgedTrajectory] | None, bill: Bill
    ) -> Judgement:
        """Ask, unless another process is asking: then wait for its verdict, or for its claim to expire.

        ``blind`` has what the first pass said by trajectory, if this is the second.
        """
        while True:
            async with self.claims.slot():
                is_ours, known = await self.store.claim(question)
                try:
                    if known is not None:
                        return known
                    if is_ours:
                        return await self._ask(question, fitted, blind, bill)
                finally:
                    if is_ours:
                        await self.store.release(question)
            await asyncio.sleep(_POLL_SECONDS)

    async def _ask(
        self, question: JudgeQuestion, fitted: FittedGroup, blind: Mapping[str, JudgedTrajectory] | None, bill: Bill
    ) -> Judgement:
        # Not from the verdict's key: under another purpose exactly the same question is asked again.
        view = fitted.view
        listing = orders(len(view.trajectories), self.orders.most, view.key(self.identity))[question.order_number]
        fault: str | None = None
        for _ in range(MAX_REPLIES):
            asked = fitted.prompt(listing, secrets.token_bytes(16), fault)
            answer = await self.calls.answer(question, asked, bill)
            call = self.calls.record_of(asked, answer)
            try:
                if answer.fault is not None:
                    raise BadReply(answer.fault)
                scores = parse(answer.text, asked.ids, with_correction=asked.with_correction, decisions=asked.decisions)
            except BadReply as bad:
                fault = str(bad)
                await self.store.record_call(question, replace(call, result=CallResult.BAD_REPLY, fault=fault))
                continue
            judgement = Judgement(
                scores=_scored(view, scores, blind),
                prompt_hash=asked.prompt_hash,
                prompt_tokens=call.prompt_tokens,
                completion_tokens=call.completion_tokens,
                cached_tokens=call.cached_tokens,
                cost_usd=call.cost_usd,
                characters_cut=fitted.characters_cut,
            )
            await self.store.store(question, judgement, call)
            self._is_answering = True
            return judgement
        raise Unanswered(Reason.JUDGE_BAD_REPLY, f"the judge's reply could not be used: {fault}")


def _scored(
    view: GroupView, scores: Sequence[Score], blind: Mapping[str, JudgedTrajectory] | None
) -> tuple[JudgedTrajectory, ...]:
    """What is stored of one order; ``blind`` is what the first of two passes said.

    The decisions were scored there: what hindsight shows about an agent's reasons moves all of them alike.
    """
    one_pass = tuple(
        JudgedTrajectory(
            shown.digest, shown.trajectory.trajectory_id, score.score, score.explanation, steps=score.steps
        )
        for shown, score in zip(view.trajectories, scores, strict=True)
    )
    if blind is None:
        return one_pass
    before = [blind[one.trajectory_id].score for one in one_pass]
    decisions = [blind[one.trajectory_id].steps for one in one_pass]
    corrections = [score.correction or 0.0 for score in scores]
    sides = [view.group.world.side_of(shown.trajectory, view.group.outcomes) for shown in view.trajectories]
    return tuple(
        replace(
            one,
            score=trained,
            blind=first,
            hindsight=one.score,
            correction=correction,
            steps=tuple(None if step is None else min(1.0, max(0.0, step + trained - first)) for step in steps),
        )
        for one, trained, first, correction, steps in zip(
            one_pass, corrected(before, corrections, sides), before, corrections, decisions, strict=True
        )
    )


def _verdicts(view: GroupView, judgements: Sequence[Judgement], order_sd: float | None) -> tuple[Verdict, ...]:
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
            uncertainty=stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else order_sd or 0.0,
            explanation="\n".join(explanations),
            luck=_luck(heard),
            steps=_steps(heard, shown.decisions),
        )
    return tuple(found[trajectory.trajectory_id] for trajectory in view.group.trajectories)


def _steps(heard: Sequence[JudgedTrajectory], decisions: int) -> tuple[float | None, ...]:
    """The mean score of each decision over the orders that gave it one; empty if none did."""
    told = [one.steps for one in heard if len(one.steps) == decisions]
    means = [[score for score in scores if score is not None] for scores in zip(*told, strict=True)]
    return tuple(fmean(scores) if scores else None for scores in means)


def _luck(heard: Sequence[JudgedTrajectory]) -> float | None:
    found = [one.hindsight - one.blind for one in heard if one.hindsight is not None and one.blind is not None]
    return fmean(found) if found else None
