"""What is remembered of judging: one judgement for each group and order, one record for each call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from trainer.types import Group, JudgeIdentity


@dataclass(frozen=True, slots=True)
class Question:
    """One group in one of its orders, as one judge is asked about it: what is paid for at most once."""

    verdict_key: str
    order_number: int
    group: Group
    identity: JudgeIdentity


@dataclass(frozen=True, slots=True)
class JudgedTrajectory:
    """The score of one trajectory in one order. ``content`` is the digest of its view."""

    content: str
    trajectory_id: str
    score: float
    explanation: str

    def as_json(self) -> dict[str, str | float]:
        return {
            "content": self.content,
            "trajectory_id": self.trajectory_id,
            "score": self.score,
            "explanation": self.explanation,
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """An answered question."""

    scores: tuple[JudgedTrajectory, ...]
    prompt_hash: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    characters_cut: int = 0


class CallResult(StrEnum):
    """How a call ended."""

    OK = "ok"
    BAD_REPLY = "bad_reply"
    """Answered, but not usable: wrong ids, a score out of range, a refusal, a cut-off."""
    REFUSED = "refused"
    """The endpoint did not take the request as it was put (no such format, no such model, no access)."""
    BUSY = "busy"
    FAILED = "failed"
    """5xx, or no connection."""
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the endpoint and what it came to."""

    result: CallResult
    prompt_hash: str
    latency_ms: float
    fault: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_estimated: bool = False
    cost_usd: float = 0.0

    def ended(self, result: CallResult, fault: str) -> Call:
        return replace(self, result=result, fault=fault)

    def billed(self, prompt_tokens: int, completion_tokens: int, cost_usd: float) -> Call:
        return replace(self, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost_usd=cost_usd)

    def estimated(self, prompt_tokens: int, cost_usd: float) -> Call:
        return replace(self, prompt_tokens=prompt_tokens, cost_usd=cost_usd, tokens_estimated=True)
