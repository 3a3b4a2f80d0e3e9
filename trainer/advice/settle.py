"""What came of proposals, by the game's own facts and log, when their window is over.

A proposal is right if the world says so: in a market if it would have made money by the game's prices, elsewhere if the
facts name it as the right action; so is what the agent did in fact. Whether it was taken is read off the log where the
log has the decision. What an agent says of any of this changes nothing here.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from data_bridge.database import Database
from data_bridge.models import ChatMessage, NotText, Step, Window
from data_bridge.quality import Rules
from data_bridge.reader import WindowReader
from data_bridge.window_ids import GRACE, end_of, window_of
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.advice.proposal import proposed
from trainer.ledger.advice import AdviceRow, Finding, settle_advice, unsettled

GIVE_UP = timedelta(days=3)
"""How long after a window its facts are waited for."""
_AT_ONCE = 20


async def settle_from_facts(database: Database, model: str, rules: Rules) -> int:
    """Settle what can be settled of windows that have ended by ``rules.now``; returns how many proposals were."""
    waiting = await unsettled(database, model, closed_before=window_of(rules.now), windows=_AT_ONCE)
    reader = WindowReader(database, rules)
    settled = 0
    for window_id, rows in waiting.items():
        if rules.now < end_of(window_id, 1) + GRACE:
            continue
        window = await reader.read(window_id)
        findings = [finding_of(row, window, rules.now, rules.world) for row in rows]
        final = [one for one in findings if one.is_final]
        await settle_advice(database, final, "facts")
        settled += len(final)
    return settled


def finding_of(row: AdviceRow, window: Window | None, now: datetime, world: World = MARKET) -> Finding:
    """What the game's facts and log say of one proposal. Pure."""
    is_late = now > end_of(row.window_id, 1) + GIVE_UP
    if window is None or not window.outcomes:
        return Finding(row.advice_id, None, None, is_final=is_late)
    logged = logged_decision(row, window)
    trajectory_id, step = logged if logged is not None else (None, None)
    done = None if step is None else step.action
    proposal = None if row.proposal is None else proposed(row.proposal, world, done)
    taken = None
    if done is not None and proposal is not None and (choice := world.choice_of(proposal)) is not None:
        taken = world.choice_of(done) == choice
    return Finding(
        row.advice_id,
        right=None if proposal is None else world.is_right(proposal, window.outcomes),
        decision_right=None if done is None else world.is_right(done, window.outcomes),
        taken=taken,
        trajectory_id=trajectory_id,
        is_logged=logged is not None,
    )


def logged_decision(row: AdviceRow, window: Window) -> tuple[str, Step] | None:
    """The step of the agent's log in which its model saw the very same messages."""
    asked = _texts(row.messages)
    for trajectory in window.trajectories:
        if trajectory.agent_id != row.agent_id or trajectory.trajectory_id == returned_id(row.advice_id):
            continue
        for step in trajectory.steps:
            if any(_texts(call.seen()) == asked for call in step.llm_calls):
                return trajectory.trajectory_id, step
    return None


def returned_id(advice_id: str) -> str:
    """The id of a proposal as a trajectory."""
    return f"advice-{advice_id}"


def _texts(messages: list[ChatMessage]) -> list[tuple[str, str]] | None:
    try:
        return [(one.role, one.text()) for one in messages]
    except NotText:
        return [(one.role, msgspec.json.encode(one.content).decode()) for one in messages]
