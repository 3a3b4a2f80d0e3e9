"""The verdict on a run in words: the headline, its tone, and its caveats. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.abilities import abilities_of
from trainer.ledger.read.types import RunFacts
from trainer.ledger.releases import Promotion
from trainer.ledger.states import PromotionState
from trainer.progress import counted

_ENDED = {"running": "is still running", "interrupted": "was interrupted", "failed": "failed"}


def headline(facts: RunFacts) -> str:
    """The verdict in a few words."""
    name = facts.checkpoint
    if facts.promotion is not None:
        return f"{facts.promotion.checkpoint.name} {_promoted(facts.promotion)}"
    if facts.ruling is not None:
        return {
            "promote": f"{name} passed the gate, not promoted yet",
            "refuse": f"{name} was refused",
            "undecided": f"{name}: undecided, not promoted",
        }[facts.ruling]
    if facts.evaluation is not None:
        return f"{name} was evaluated, the gate did not rule"
    if facts.state == "done":
        return f"{name} was trained, not evaluated" if facts.steps else f"{name}: nothing was trained"
    return f"The run of {facts.model} {_ENDED[facts.state]}"


def _promoted(promotion: Promotion) -> str:
    by_force = " by force" if promotion.forced else ""
    match promotion.state:
        case PromotionState.CANARY:
            return f"is being tried by {promotion.canary_share or 0:.0%} of the agents"
        case PromotionState.SUPERSEDED:
            return f"was promoted{by_force} and later replaced"
        case PromotionState.ROLLED_BACK:
            return f"was promoted{by_force} and rolled back"
        case PromotionState.SERVING:
            return f"was promoted{by_force}"


def tone(facts: RunFacts) -> str:
    """``good``, ``bad`` or ``wait``: how the verdict is coloured."""
    if facts.leaked_windows:
        return "bad"
    if facts.promotion is not None:
        return {PromotionState.SERVING: "good", PromotionState.ROLLED_BACK: "bad"}.get(facts.promotion.state, "wait")
    if facts.ruling == "promote":
        return "good"
    return "bad" if facts.ruling == "refuse" or facts.state == "failed" else "wait"


def notices(facts: RunFacts) -> Iterator[str]:
    """The caveats: every stand-in, and every failure."""
    if facts.judge is not None and facts.judge.judge == "reward":
        yield (
            "The judge of this run was the offline yardstick (what agents achieved by the world's own measure, and "
            "valid actions), not an LLM. Its scores reward luck as well as skill."
        )
    elif facts.judge is not None and not facts.judge.is_llm:
        yield (
            "The judge of this run was the offline yardstick (profit at the game's prices, risk and valid actions), "
            "not an LLM. Its scores reward luck as well as skill."
        )
    if facts.simulated_windows:
        world = facts.settings.get("world", "market")
        played = counted(facts.simulated_windows, "window")
        yield f"The simulated {world}, not a real game, played {played} of this run."
    if abilities_of(facts.backend).is_stand_in:
        yield f"The model was trained on the CPU: {facts.base_model}."
    if facts.attempts > 1:
        yield f"The run was resumed: this is attempt {facts.attempts}."
    for failed in facts.failed_batches:
        yield f"Not trained: {failed}"


def duration(facts: RunFacts) -> str:
    """How long the run took, from its first start to its end."""
    if facts.finished_at is None:
        return "not finished"
    seconds = int((facts.finished_at - facts.started_at).total_seconds())
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"
