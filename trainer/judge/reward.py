"""The judge by results: ranks a group by the world's own measure of success. Deterministic, free, and not an LLM.

Success comes from facts, from rewards that the game itself logged, or from a replay; see ``World.success``. Like the
offline judge of markets it rewards luck as well as skill. A trajectory's score is the share of its decisions that are
valid, times its rank in the group. A member that cannot be measured is left out alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from data_bridge.models import DECISIONS, AgentTrajectory
from data_bridge.quality import Measurable, Reason, exclusion_of
from data_bridge.worlds.world import Success
from trainer.judge.outcome import ranked_scores, store_verdicts
from trainer.judge.sound import without_faulty_rows
from trainer.judge.view import view_of
from trainer.ledger.verdicts import VerdictStore
from trainer.progress import JudgeUsage
from trainer.types import MIN_GROUP, Group, JudgedGroup, JudgeFailure, JudgeIdentity, Verdict

IDENTITY_OF_REWARD = JudgeIdentity("reward", rubric="reward", rubric_version="1", prompt_version="2", is_llm=False)

RESOLUTION = 1e-6
"""Successes closer than this count as equal."""

DETAIL = "no fact, logged reward of the game or replay says what it achieved"

MEASURED = Measurable(
    lambda trajectory, facts, world: world.success(trajectory, facts) is not None,
    Reason.NOT_MEASURED,
    DETAIL,
    "whose success is known",
)


@dataclass(slots=True)
class RewardJudge:
    """Same interface as the LLM judge. With a store, its verdicts are also kept, for the lineage."""

    store: VerdictStore | None = None
    purposes: tuple[str, ...] = DECISIONS
    identity: JudgeIdentity = IDENTITY_OF_REWARD
    usage: JudgeUsage = field(default_factory=JudgeUsage)

    @without_faulty_rows(view_of, lambda group, _: [_measure(group, one) for one in group.trajectories])
    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        measured = [(member, _measure(group, member)) for member in group.trajectories]
        known = [(member, found) for member, found in measured if found is not None]
        left_out = tuple(
            exclusion_of(member, Reason.NOT_MEASURED, DETAIL) for member, found in measured if found is None
        )
        if left_out and len(known) < MIN_GROUP:
            self.usage.count_failure(Reason.NOT_MEASURED)
            return JudgeFailure(group, Reason.NOT_MEASURED, f"of {left_out[0].trajectory_id}: {DETAIL}")
        judged = replace(group, trajectories=tuple(member for member, _ in known))
        levels = [round(success.value / RESOLUTION) for _, (success, _) in known]
        scores = ranked_scores(levels, [share for _, (_, share) in known])
        verdicts = tuple(
            Verdict(member.trajectory_id, score, 0.0, _explain(success, share))
            for (member, (success, share)), score in zip(known, scores, strict=True)
        )
        key = await store_verdicts(self.store, self.identity, judged, verdicts, self.purposes)
        self.usage.count_group(cached=False)
        return JudgedGroup(judged, verdicts, self.identity, key, left_out=left_out)

    async def close(self) -> None:
        return


def _measure(group: Group, member: AgentTrajectory) -> tuple[Success, float] | None:
    success = group.world.success(member, group.outcomes)
    if success is None:
        return None
    share = group.world.valid_share(member, group.outcomes)
    return success, 1.0 if share is None else share


def _explain(success: Success, share: float) -> str:
    return f"{success.told}, {share:.0%} of the decisions valid (by results, not an LLM)"
