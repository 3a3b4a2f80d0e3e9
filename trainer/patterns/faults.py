"""What went wrong in a trajectory, as far as its row, the game and the judge say so.

An agent writes its own rows: what it says of itself costs only itself. Of each row a bounded number of faults counts,
each once, and each text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from data_bridge.models import AgentTrajectory, Step
from trainer.types import JudgedGroup

CODES = frozenset(
    {
        *("empty_reply", "not_one_line", "unreadable"),
        *("not_offered", "unknown_market", "order_limit", "no_balance", "loss_limit", "position_limit", "over_balance"),
        *("unknown_errand", "no_coins"),
    }
)
"""Reasons that the simulated worlds give: those of their parsers, and the blocks of their guards. A closed list: a
name that an agent can invent would be a pattern of its own."""
NO_ACTION = "no_action"
"""A model was asked and nothing was done."""
FAILED = "failed"
"""An action that failed without a word."""

MOST_FAULTS = 20
LONGEST = 240
_CODE = re.compile(r"\s*([a-z_]{3,40})\s*(?::|$)")
_SENTENCE = re.compile(r"(?<=[.!?;])\s")


class FaultSource(StrEnum):
    CODE = "code"
    ERROR = "error"
    JUDGE = "judge"


class Fault(msgspec.Struct, frozen=True):
    """One thing that went wrong: a code, or a text."""

    source: FaultSource
    text: str


class Observed(msgspec.Struct, frozen=True):
    """One trajectory, and what went wrong in it; nothing, mostly."""

    trajectory_id: str
    agent_id: str
    window_id: str
    faults: tuple[Fault, ...] = ()


def observed(trajectory: AgentTrajectory) -> Observed:
    """The failed and missing actions of ``trajectory``."""
    found = [fault for step in trajectory.steps if (fault := _fault_of(step)) is not None]
    return Observed(trajectory.trajectory_id, trajectory.agent_id, trajectory.window_id, _bounded(found))


def weaknesses(judged: JudgedGroup) -> list[Observed]:
    """What an LLM judge says of the members below their group's mean: the first sentence on each."""
    if not judged.identity.is_llm:
        return []
    mean = sum(judged.scores) / len(judged.scores)
    return [
        Observed(one.trajectory_id, one.agent_id, one.window_id, _bounded([_weakness(verdict.explanation)]))
        for one, verdict in zip(judged.group.trajectories, judged.verdicts, strict=True)
        if verdict.score < mean and verdict.explanation.strip()
    ]


def _weakness(explanation: str) -> Fault:
    return Fault(FaultSource.JUDGE, _SENTENCE.split(explanation.strip(), maxsplit=1)[0])


def _fault_of(step: Step) -> Fault | None:
    action = step.action
    if action is None or action.is_pending:
        return Fault(FaultSource.CODE, NO_ACTION) if step.llm_calls else None
    said = action.failure
    if said is None:
        return None
    code = _CODE.match(said)
    if code is not None and code[1] in CODES:
        return Fault(FaultSource.CODE, code[1])
    text = said.strip()
    return Fault(FaultSource.CODE, FAILED) if text in ("", FAILED) else Fault(FaultSource.ERROR, text)


def _bounded(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    cut = (Fault(one.source, " ".join(one.text.split())[:LONGEST]) for one in faults)
    return tuple(list(dict.fromkeys(cut))[:MOST_FAULTS])
