"""The gate: evidence in, one of three rulings out, each with its reasons. Pure; nothing else decides.

A checkpoint passes only if the low end of its gain over the incumbent is above the required gain and no guard exceeds
its limit. It is refused if a guard does, or if even the high end is not above the required gain; otherwise the ruling
is undecided. A guard that could not be measured refuses nothing, but every ruling names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Interval, Role, Ruling
from trainer.progress import counted
from trainer.statistics.intervals import MIN_WINDOWS


@dataclass(frozen=True, slots=True)
class Evidence:
    """The part of an evaluation that the gate looks at."""

    gain: Interval
    error_rate: float
    blocked_rate: float | None
    """None, here and below, means not measured."""
    length_ratio: float
    kl_from_base: float | None
    windows_needed: int | None = None


def decide(evidence: Evidence, limits: GateSettings) -> GateDecision:
    """The ruling on ``evidence``. Guards come first: no gain outweighs a broken guard."""
    guards = _guards(evidence, limits)
    broken = tuple(guard.complaint for guard in guards if guard.is_broken)
    decision = GateDecision(Ruling.REFUSE, broken) if broken else _decide_on_gain(evidence, limits)
    unmeasured = ", ".join(guard.name for guard in guards if guard.value is None)
    return replace(decision, reasons=(*decision.reasons, f"not measured: {unmeasured}")) if unmeasured else decision


def _decide_on_gain(evidence: Evidence, limits: GateSettings) -> GateDecision:
    gain = evidence.gain
    if gain.low is None or gain.high is None:
        few = f"only {counted(gain.windows, 'held-out window')}; the minimum to decide is {MIN_WINDOWS}"
        return GateDecision(Ruling.UNDECIDED, (few,))
    measured = (
        f"gain {gain.mean:+.3f} (95% interval {gain.low:+.3f} to {gain.high:+.3f}, {counted(gain.windows, 'window')})"
    )
    required = f"the required {limits.min_gain:+.3f}"
    if gain.low > limits.min_gain:
        return GateDecision(Ruling.PROMOTE, (f"{measured} is above {required}",))
    if gain.high <= limits.min_gain:
        return GateDecision(Ruling.REFUSE, (f"{measured} does not reach {required}",))
    needed = (
        f"about {counted(evidence.windows_needed, 'window')} would decide"
        if evidence.windows_needed is not None
        else "too close for any number of windows to decide"
    )
    return GateDecision(Ruling.UNDECIDED, (f"{measured} includes {required}", needed))


@dataclass(frozen=True, slots=True)
class _Guard:
    name: str
    value: float | None
    limit: float

    @property
    def is_broken(self) -> bool:
        # "not within" rather than "above", so that a NaN breaks the guard and never passes it.
        return self.value is not None and not self.value <= self.limit

    @property
    def complaint(self) -> str:
        return f"{self.name} {self.value:.3g} exceeds the limit of {self.limit:g}"


def _guards(evidence: Evidence, limits: GateSettings) -> tuple[_Guard, ...]:
    return (
        _Guard("error rate", evidence.error_rate, limits.max_error_rate),
        _Guard("safety blocks", evidence.blocked_rate, limits.max_safety_blocks),
        _Guard("reply length as a multiple of the incumbent's", evidence.length_ratio, limits.max_length_ratio),
        _Guard("KL from the base model", evidence.kl_from_base, limits.max_kl),
    )


def evidence_of(evaluation: Evaluation) -> Evidence:
    candidate, comparison = evaluation.of(Role.CANDIDATE), evaluation.against(Role.INCUMBENT)
    if candidate is None or comparison is None:
        raise ValueError(f"evaluation {evaluation.evaluation_id} does not compare a candidate with an incumbent")
    return Evidence(
        gain=comparison.score_difference,
        error_rate=candidate.error_rate.mean,
        blocked_rate=candidate.blocked_rate.mean if candidate.blocked_rate is not None else None,
        length_ratio=comparison.length_ratio,
        kl_from_base=candidate.kl_from_base,
        windows_needed=comparison.windows_needed,
    )


def rule(evaluation: Evaluation, settings: GateSettings) -> GateDecision:
    """The gate as a run calls it."""
    return decide(evidence_of(evaluation), settings)
