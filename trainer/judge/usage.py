"""The running total of a judge: groups, calls, tokens and dollars of this process."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from data_bridge.quality import Reason


@dataclass(slots=True)
class Usage:
    judged: int = 0
    from_cache: int = 0
    failed: Counter[Reason] = field(default_factory=Counter)
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    observations_shortened: int = 0
    characters_cut: int = 0

    def count_group(self, *, cached: bool) -> None:
        self.judged += 1
        self.from_cache += cached

    def count_failure(self, reason: Reason) -> None:
        self.failed[reason] += 1

    def count_call(self, prompt_tokens: int, completion_tokens: int, usd: float) -> None:
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cost_usd += usd

    def count_cut(self, observations: int, characters: int) -> None:
        self.observations_shortened += observations
        self.characters_cut += characters
