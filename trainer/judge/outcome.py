"""The offline judge: ranks a group by the results of its decisions. Deterministic, free, and not an LLM.

It rewards luck as well as skill, so it is a yardstick and a stand-in. A trajectory's score is the share of its
decisions that could be executed, times its rank in the group: from 0.25 for the worst to 1 for the
best, so that a losing trade never scores below an invalid action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from data_bridge.models import DECISIONS, AgentTrajectory, MarketOutcomes
from data_bridge.quality import Reason
from trainer.judge.sound import without_faulty_rows
from trainer.judge.view import decides, is_valid, stakes_of, view_of
from trainer.ledger.verdicts import JudgedTrajectory, Judgement, JudgeQuestion, VerdictStore
from trainer.types import Group, JudgedGroup, JudgeFailure, JudgeIdentity, JudgeUsage, Verdict

IDENTITY = JudgeIdentity(judge="outcome", rubric="outcome", rubric_version="1", prompt_version="1", is_llm=False)

FLOOR = 0.25
"""The lowest score of a valid decision: the gap to an invalid one, which gets 0."""

RISK_AVERSION = 2.0
"""Weight of the squared risk: a stake of the whole balance in a market that moved by 10 % costs 1 %."""

RESOLUTION = 1e-4
"""Returns closer than this (one basis point of the balance) count as equal: fees and rounding are not skill."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the offline judge knows about one trajectory."""

    valid_share: float
    """Share of its decisions that are valid."""
    excess: float
    """Return on the starting balance in the window, beyond the market's own move."""
    at_risk: float
    """Share of the balance staked, times the size of the market's moves: the possible loss."""

    @property
    def utility(self) -> float:
        return self.excess - RISK_AVERSION / 2 * self.at_risk * self.at_risk


@dataclass(slots=True)
class OutcomeJudge:
    """Same interface as the LLM judge. With a store, its verdicts are also kept, for the lineage."""

    store: VerdictStore | None = None
    purposes: tuple[str, ...] = DECISIONS
    identity: JudgeIdentity = IDENTITY
    usage: JudgeUsage = field(default_factory=JudgeUsage)

    @without_faulty_rows(view_of, lambda group, _: [assess(one, group.outcomes) for one in group.trajectories])
    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        view = view_of(group, self.purposes)
        assessed: list[Assessment] = []
        for trajectory in group.trajectories:
            assessment = assess(trajectory, group.outcomes)
            if assessment is None:
                self.usage.count_failure(Reason.NO_PNL)
                detail = f"the profit of {trajectory.trajectory_id} in the window is not known"
                return JudgeFailure(group, Reason.NO_PNL, detail)
            assessed.append(assessment)
        verdicts = tuple(
            Verdict(trajectory.trajectory_id, score, 0.0, _explain(assessment))
            for trajectory, score, assessment in zip(group.trajectories, scores(assessed), assessed, strict=True)
        )
        key = view.key(self.identity)
        if self.store is not None:
            by_id = {verdict.trajectory_id: verdict for verdict in verdicts}
            judged = tuple(
                JudgedTrajectory(shown.digest, verdict.trajectory_id, verdict.score, verdict.explanation)
                for shown in view.trajectories
                for verdict in [by_id[shown.trajectory.trajectory_id]]
            )
            question = JudgeQuestion(key, 0, group.window_id, group.group_id, self.identity)
            await self.store.store(question, Judgement(judged, prompt_hash=""))
        self.usage.count_group(cached=False)
        return JudgedGroup(group, verdicts, self.identity, key)

    async def close(self) -> None:
        return


def assess(trajectory: AgentTrajectory, outcomes: MarketOutcomes) -> Assessment | None:
    """None if the agent traded and its profit follows neither from its accounts nor from the prices.

    Accounts with absurdly large numbers do not count.
    """
    decisions = [step for step in trajectory.steps if decides(step)]
    valid = sum(is_valid(step) for step in decisions)
    stakes = stakes_of(trajectory, outcomes)
    moves = [stock.change_percent / 100 for stock in outcomes.stocks if stock.change_percent is not None]
    market = fmean(moves) if moves else 0.0
    earned = _return_on_balance(trajectory)
    if earned is None:
        if any(stake.gain is None or stake.share is None for stake in stakes):
            return None
        earned = sum((stake.share or 0.0) * (stake.gain or 0.0) for stake in stakes)
    staked = sum(stake.share for stake in stakes if stake.share is not None)
    size_of_moves = fmean(abs(move) for move in moves) if moves else 0.0
    assessment = Assessment(
        valid_share=valid / len(decisions) if decisions else 0.0,
        excess=earned - market,
        at_risk=staked * size_of_moves,
    )
    return assessment if math.isfinite(assessment.utility / RESOLUTION) else None


def scores(assessed: Sequence[Assessment]) -> list[float]:
    """Each one's rank among those with a valid decision, scaled by its share of valid ones."""
    levels = [round(assessment.utility / RESOLUTION) for assessment in assessed]
    ranked = [level for level, assessment in zip(levels, assessed, strict=True) if assessment.valid_share > 0]
    return [
        assessment.valid_share * (FLOOR + (1 - FLOOR) * _place(level, ranked)) if assessment.valid_share > 0 else 0.0
        for level, assessment in zip(levels, assessed, strict=True)
    ]


def _place(level: int, ranked: Sequence[int]) -> float:
    """From 0 (below all others) to 1 (above all others); ties share the mean of their ranks."""
    if len(ranked) == 1:
        return 0.5
    below = sum(other < level for other in ranked)
    equal = sum(other == level for other in ranked) - 1
    return (below + equal / 2) / (len(ranked) - 1)


def _return_on_balance(trajectory: AgentTrajectory) -> float | None:
    balance = trajectory.starting_balance
    if trajectory.window_pnl is None or balance is None or balance <= 0:
        return None
    return trajectory.window_pnl / balance


def _explain(assessment: Assessment) -> str:
    return (
        f"{assessment.excess:+.2%} of the balance relative to the market, {assessment.at_risk:.2%} at risk, "
        f"{assessment.valid_share:.0%} of the decisions valid (offline judge, not an LLM)"
    )
