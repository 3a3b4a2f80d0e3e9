"""What the chosen judge can and cannot do in this database, said before anything is judged, trained or paid for."""

from __future__ import annotations

from data_bridge.facts import MAX_FACTS
from data_bridge.survey import Totals
from data_bridge.worlds.world import World
from trainer.config.sections import JudgePriceSettings
from trainer.judge.cost import uses_llm, uses_reward
from trainer.judge.open import measured_by
from trainer.progress import counted


def can_evaluate(judge: JudgePriceSettings, world: World, *, is_simulated: bool) -> bool:
    """Whether this judge can compare replies that were never carried out: a model with the one that agents use."""
    return uses_llm(judge) or is_simulated or (uses_reward(judge) and world.can_value_replies)


def reach_of(judge: JudgePriceSettings, world: World, totals: Totals, *, is_simulated: bool) -> tuple[str, ...]:
    """One sentence each: what it judges, and whether it can evaluate and so promote."""
    measured = measured_by(judge)
    if measured is None:
        judges = f"The judge {judge.judge_model} can read every usable trajectory."
    else:
        unmeasured = totals.reasons.get(measured.reason, 0)
        name = "reward" if uses_reward(judge) else "outcome"
        judges = f"--judge {name} can measure {counted(totals.usable, 'trajectory')}"
        judges += f", and not {unmeasured:,} ({measured.reason.value}: {measured.detail})." if unmeasured else "."
    if can_evaluate(judge, world, is_simulated=is_simulated):
        how = "by the world's own parser" if world.can_parse else "by the judge alone"
        validity = "by replaying the decision" if is_simulated else how
        return judges, f"It can evaluate and promote a model; whether a reply is a valid action is told {validity}."
    return (
        judges,
        "It cannot evaluate or promote a model here: nothing says what another reply would have been worth; set "
        "EVAL_JUDGE_MODEL or JUDGE_MODEL, or write facts that name the right action (docs/worlds.md).",
    )


def doubts_of(totals: Totals) -> str | None:
    """What is to be said of facts that do not count, or came late; None if nothing is."""
    doubts = totals.doubts
    parts = [
        f"{doubts.unknown:,} have no value yet" if doubts.unknown else "",
        f"{doubts.contradictory:,} are told differently by two sources and count for neither"
        if doubts.contradictory
        else "",
        f"{doubts.malformed:,} cannot be read" if doubts.malformed else "",
        f"{doubts.too_many:,} are beyond the {MAX_FACTS:,} that are read of a window" if doubts.too_many else "",
        f"{doubts.late:,} came after their window had closed" if doubts.late else "",
    ]
    said = [part for part in parts if part]
    if not said:
        return None
    return f"Of the facts {', '.join(said)}: a correction counts from then on, and nothing is trained again for it."
