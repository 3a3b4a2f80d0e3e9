"""A proposal that was taken, as a trajectory in the game's shape: advice is trained on like any other decision."""

from __future__ import annotations

from datetime import datetime

import msgspec

from data_bridge.ingest import SentTrajectory
from data_bridge.models import LLMCall, Step
from data_bridge.replies import action_in
from trainer.advice.settle import returned_id
from trainer.ledger.advice import AdviceRow


def trajectory_of(row: AdviceRow, now: datetime) -> SentTrajectory | None:
    """The row as an agent would send it; None if nothing was proposed.

    Without log-probabilities: the proposal was chosen among several replies, so those of the one that was chosen are
    not how likely it was to be said. The trainer scores it with the current policy, and counts that.
    """
    if row.proposal is None:
        return None
    release = row.release.partition("+")[0]
    call = LLMCall(model=release, messages=row.messages, response=row.proposal, purpose="action", temperature=1.0)
    step = Step(step_number=0, timestamp=row.at.timestamp() * 1000, llm_calls=[call], action=action_in(row.proposal))
    metadata = {"advice": row.advice_id, "release": row.release, "isTrainingData": True}
    return SentTrajectory(
        trajectory_id=returned_id(row.advice_id),
        agent_id=row.agent_id,
        start_time=row.at,
        end_time=max(now, row.at),
        steps_json=msgspec.json.encode([step]).decode(),
        metadata_json=msgspec.json.encode(metadata).decode(),
    )
