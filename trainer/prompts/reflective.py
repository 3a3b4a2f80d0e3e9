"""GEPA as a contestant: reflective evolution of one prompt, by the ``gepa`` package, fed with verdict explanations.

It learns nothing from other prompts: every prompt that it improves costs it judged scores, which are counted. Its
proposals are mutations. With a writer, a model reads the explanations and writes the proposal; without one, an
explanation's words choose the operator, as a stand-in.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.prompts.arena import Arena, PointScore
from trainer.prompts.experience import KEEP, MUTATIONS
from trainer.prompts.structure import StructuredPrompt, parse

_COMPONENT = "prompt"
_MINIBATCH = 4
_HINTS: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"no action|not an action|format|unreadable|empty", re.I), ("constraint_addition", "expansion")),
    (re.compile(r"wrong|against|lost|loss", re.I), ("task_decomposition", "context_reduction", "expansion")),
    (re.compile(r"missing|unclear|not sure", re.I), ("try_catch", "expansion")),
)
"""What an explanation's words suggest, the most fitting first."""


@dataclass(frozen=True, slots=True)
class Evolved:
    """The best prompt that was found, and what it cost."""

    prompt: StructuredPrompt
    judged_points: int


async def evolve(arena: Arena, start: StructuredPrompt, *, budget: int, seed: int = 0) -> Evolved:
    """Improve ``start`` with at most about ``budget`` scores at decision points."""
    points = [one.point for one in await arena.judges.judge(start)]
    adapter = _Adapter(arena, asyncio.get_running_loop())
    result = await asyncio.to_thread(_optimize, adapter, start, points, budget, seed)
    return Evolved(parse(result.best_candidate[_COMPONENT]), int(result.total_metric_calls or 0))


def _optimize(adapter: Any, start: StructuredPrompt, points: list[str], budget: int, seed: int) -> Any:
    from gepa.api import optimize

    return optimize(
        seed_candidate={_COMPONENT: start.text},
        trainset=points,
        valset=points,
        adapter=adapter,
        reflection_minibatch_size=min(_MINIBATCH, len(points)),
        max_metric_calls=budget,
        skip_perfect_score=False,
        logger=_Silent(),
        seed=seed,
    )


class _Silent:
    def log(self, message: str) -> None:
        """Only commands print."""


class _Adapter:
    """GEPA's view of an arena. It runs in a thread of its own; the arena stays in the event loop's."""

    def __init__(self, arena: Arena, loop: asyncio.AbstractEventLoop) -> None:
        self._arena, self._loop = arena, loop
        self._tried: dict[str, set[str]] = {}

    def evaluate(self, batch: list[str], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        from gepa.core.adapter import EvaluationBatch

        judged = {one.point: one for one in self._wait(self._arena.judges.judge(parse(candidate[_COMPONENT])))}
        own = [judged.get(point, PointScore(point, 0.0, "no verdict")) for point in batch]
        scores = [one.score for one in own]
        return EvaluationBatch(outputs=list(own), scores=scores, trajectories=list(own) if capture_traces else None)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        told = [
            {"Inputs": one.point, "Generated Outputs": "", "Feedback": f"{one.score:.2f}: {one.explanation}"}
            for one in eval_batch.trajectories or []
        ]
        return dict.fromkeys(components_to_update, told)

    def propose_new_texts(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        prompt = parse(candidate[_COMPONENT])
        told = " ".join(str(one["Feedback"]) for one in reflective_dataset.get(_COMPONENT, ()))
        mutation = self._suggested(prompt, told)
        if mutation is None:
            return {_COMPONENT: prompt.text}
        return {_COMPONENT: self._wait(self._arena.mutated(prompt, mutation)).prompt.text}

    def _suggested(self, prompt: StructuredPrompt, told: str) -> str | None:
        """The first that the explanations suggest and that was not tried on this prompt; then any other."""
        tried = self._tried.setdefault(prompt.prompt_id, set())
        allowed = [name for name, is_allowed in zip(MUTATIONS, self._arena.mask(prompt), strict=True) if is_allowed]
        hinted = [name for pattern, names in _HINTS if pattern.search(told) for name in names]
        for name in (*hinted, *MUTATIONS):
            if name in allowed and name not in tried and name != MUTATIONS[KEEP]:
                tried.add(name)
                return name
        return None

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
