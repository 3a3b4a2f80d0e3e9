"""What is known after an hour of errands, as facts: what happened on the roads, and what each agent brought home.

Facts are told by the world, never by an agent. Nothing of the planted truth is among them: not how safe a road was
said to be, but whether robbers came.
"""

from __future__ import annotations

from typing import Any

from data_bridge.database import Database
from data_bridge.facts import record_facts
from data_bridge.models import Fact
from data_bridge.window_ids import GRACE, end_of
from trainer.world.quests.carrying import GO, GUARD
from trainer.world.quests.errands import Errand


async def record_truth(database: Database, played: Any) -> None:
    """Write the facts of a window that has closed."""
    window_id = played.hour.window_id
    await record_facts(database, window_id, facts_of(played), now=end_of(window_id, 1) + GRACE / 2)


def facts_of(played: Any) -> list[Fact]:
    """About every errand that was on a board somebody saw, and about every agent. Ordered, no two of one name."""
    at = end_of(played.hour.window_id, 1)
    found: dict[tuple[str, str], Fact] = {}

    def add(subject: str, kind: str, *, before: float | None = None, after: float | None, text: str) -> None:
        found[subject, kind] = Fact(subject, kind, before, after, text, at)

    for life in played.agents:
        for step in life.steps:
            for errand in step.seen.errands:
                has_robbers = errand.place in played.tape.roads[step.seen.step].robbed
                add(errand.name, "robbers", after=float(has_robbers), text=_happened(errand, has_robbers))
                if not errand.is_heavy:
                    right = GUARD if has_robbers else GO
                    found[errand.name, "right_action"] = Fact(errand.name, "right_action", text=right, at=at)
            if step.price is not None:
                brought = "brought its coins" if step.price > 0 else "cost its coins"
                add(f"{life.agent.agent_id}/{step.decision.errand}", "errand", after=step.price, text=brought)
        begun = life.steps[0].book
        earned = life.pnl
        add(
            life.agent.agent_id,
            "coins",
            before=float(begun.supplies),
            after=begun.supplies + earned,
            text=f"{earned:+g} in the window",
        )
    return [found[key] for key in sorted(found)]


def _happened(errand: Errand, has_robbers: bool) -> str:
    return f"{'robbers came' if has_robbers else 'no robbers came'} on the road to {errand.place}"
