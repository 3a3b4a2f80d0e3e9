"""The gate: evidence in, one of three rulings out, each with its reasons. Pure; nothing else decides.

A release passes only if its gain over the incumbent is shown (the low end of the interval is above the required
gain), harm is ruled out at the error rate that the year's budget leaves for this look, and no guard exceeds its limit.
It is refused if a guard does, or if even the high end is not above the required gain; otherwise the ruling is
undecided. A guard that could not be measured refuses nothing, but every ruling names it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from trainer.config.training import GateSettings
from trainer.evidence import Evaluation, GateDecision, Interval, Look, Narrowing, Role, Ruling
from trainer.progress import counted
from trainer.statistics.gain import (
    HARM,
    MIN_WINDOWS_TO_RULE,
    Power,
    gain_interval,
    power_for,
    rules_out_harm,
    shrunk_gain,
)

SMALL_GAIN = 0.05
"""Every ruling says how likely the gate was to see a gain of this size."""


VALIDITY_TOLERANCE = 0.05
"""How much less often than the base's the replies may be valid where the candidate has the least practice.

Not zero: on 80 questions an equal model that is valid in 97.5 %, as the greedy base is, is measured lower by more than
this in one of eighty tries. Not more: a model that learnt a name instead of reading loses ten times as much.
"""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gate looks at."""

    differences: tuple[float, ...]
    """Candidate minus incumbent, one number per window, in the order of the hours."""
    error_rate: float
    blocked_rate: float | None
    """None, here and below, means not measured."""
    length_ratio: float
    kl_from_base: float | None
    point_noise: float | None = None
    """Share of the spread between windows that comes from asking at a few points in each."""
    narrowing: Narrowing | None = None
    """Validity on unseen tickers, or on the rarest states of a log, beside the base model's."""


def decide(evidence: Evidence, limits: GateSettings, look: Look) -> GateDecision:
    """The ruling on ``evidence``. Guards come first: no gain outweighs a broken guard."""
    guards = _guards(evidence, limits)
    broken = tuple(guard.complaint for guard in guards if guard.is_broken)
    decision = GateDecision(Ruling.REFUSE, broken) if broken else _decide_on_gain(evidence, limits, look)
    unmeasured = ", ".join(guard.unmeasured for guard in guards if guard.value is None)
    return replace(decision, reasons=(*decision.reasons, f"not measured: {unmeasured}")) if unmeasured else decision


def _decide_on_gain(evidence: Evidence, limits: GateSettings, look: Look) -> GateDecision:
    differences = evidence.differences
    gain = gain_interval(differences, look.level)
    if gain.low is None or gain.high is None:
        few = f"only {counted(gain.windows, 'evaluation window')}; the minimum to decide is {MIN_WINDOWS_TO_RULE}"
        return GateDecision(Ruling.UNDECIDED, (few,))
    measured, required = _told(gain, look), f"the required {limits.min_gain:+.3f}"
    power = _told_power(power_for(differences, SMALL_GAIN, limits.min_gain, look), evidence.point_noise)
    if gain.high <= limits.min_gain:
        return GateDecision(Ruling.REFUSE, (f"{measured} does not reach {required}", power), look=look)
    if gain.low <= limits.min_gain:
        return GateDecision(Ruling.UNDECIDED, (f"{measured} includes {required}", power), look=look)
    if not rules_out_harm(differences, look.harm_chance):
        harm = f"but does not rule out a loss of {HARM} at the {look.harm_chance:.4f} that this year's budget leaves"
        return GateDecision(Ruling.UNDECIDED, (f"{measured} is above {required} {harm}", power), look=look)
    expected = shrunk_gain(differences, limits.min_gain, look)
    return GateDecision(
        Ruling.PROMOTE,
        (
            f"{measured} is above {required}, and a loss of {HARM} is ruled out at {look.harm_chance:.4f}",
            f"corrected for having been selected, {expected:+.3f} is to be expected",
            power,
        ),
        expected_gain=expected,
        look=look,
    )


def _told(gain: Interval, look: Look) -> str:
    return (
        f"gain {gain.mean:+.3f} ({100 * (1 - 2 * look.level):.4g}% interval {gain.low:+.3f} to {gain.high:+.3f}, "
        f"{counted(gain.windows, 'window')})"
    )


def _told_power(power: Power, point_noise: float | None) -> str:
    told = f"a true gain of {power.gain:+.2f} would have passed with a chance of {power.chance:.0%}"
    if power.windows is not None:
        told += f", {power.windows} windows would make that 80%"
    if point_noise is not None and point_noise > 0:
        told += f"; {point_noise:.0%} of the spread would shrink with more decision points a window (--eval-points)"
    return told


@dataclass(frozen=True, slots=True)
class _Guard:
    name: str
    value: float | None
    limit: float
    said: str = ""
    """The complaint in words, or why it could not be measured; a plain one if empty."""

    @property
    def is_broken(self) -> bool:
        # "not within" rather than "above", so that a NaN breaks the guard and never passes it.
        return self.value is not None and not self.value <= self.limit

    @property
    def complaint(self) -> str:
        return self.said or f"{self.name} {self.value:.3g} exceeds the limit of {self.limit:g}"

    @property
    def unmeasured(self) -> str:
        return f"{self.name} ({self.said})" if self.said else self.name


def _guards(evidence: Evidence, limits: GateSettings) -> tuple[_Guard, ...]:
    return (
        _Guard("error rate", evidence.error_rate, limits.max_error_rate),
        _Guard("safety blocks", evidence.blocked_rate, limits.max_safety_blocks),
        _Guard("reply length as a multiple of the incumbent's", evidence.length_ratio, limits.max_length_ratio),
        _Guard("KL from the base model", evidence.kl_from_base, limits.max_kl),
        *_narrowing_guards(evidence.narrowing),
    )


def _narrowing_guards(found: Narrowing | None) -> list[_Guard]:
    """Has the candidate lost, elsewhere, what it gained where it was trained? Sampled, and greedily where asked."""
    name = f"validity on {found.where if found is not None else 'unseen tickers or rare states'}"
    if found is None or found.candidate is None or found.base is None:
        return [_Guard(name, None, VALIDITY_TOLERANCE, found.reason if found is not None else "")]
    guards = [_fallen(name, found.candidate, found.base, found.questions)]
    if found.greedy_candidate is not None and found.greedy_base is not None:
        guards.append(_fallen(f"greedy {name}", found.greedy_candidate, found.greedy_base, found.questions))
    return guards


def _fallen(name: str, candidate: float, base: float, questions: int) -> _Guard:
    said = (
        f"{name} fell to {candidate:.2f} from the base model's {base:.2f} (tolerated: "
        f"{VALIDITY_TOLERANCE:g}, measured on {questions}): the candidate answers only what it was trained on"
    )
    return _Guard(name, base - candidate, VALIDITY_TOLERANCE, said)


def evidence_of(evaluation: Evaluation, earlier: Sequence[Evaluation] = (), without: Collection[str] = ()) -> Evidence:
    """The evidence on the candidate: this evaluation's, and what ``earlier`` ones of the same two releases measured.

    The windows ``without`` served another ruling and do not count. A window counts as it was measured first, so that
    measuring it again with other samples can change nothing. Shares of bad replies are those of all evaluations: the
    few windows that a held candidate is given at a time would make a guard a matter of luck.
    """
    candidate, comparison = evaluation.of(Role.CANDIDATE), evaluation.against(Role.INCUMBENT)
    if candidate is None or comparison is None:
        raise ValueError(f"evaluation {evaluation.evaluation_id} does not compare a candidate with an incumbent")
    measured: dict[str, float] = {}
    for one in (*earlier, evaluation):
        for window_id, difference in one.differences.items():
            if window_id not in without:
                measured.setdefault(window_id, difference)
    evaluations = {one.evaluation_id: one for one in (*earlier, evaluation)}
    asked = [figures for one in evaluations.values() if (figures := one.of(Role.CANDIDATE)) is not None]
    blocked = [one.blocked_rate for one in asked if one.blocked_rate is not None]
    return Evidence(
        differences=tuple(difference for _, difference in sorted(measured.items())),
        error_rate=_overall([one.error_rate for one in asked]),
        blocked_rate=_overall(blocked) if blocked else None,
        length_ratio=comparison.length_ratio,
        kl_from_base=candidate.kl_from_base,
        point_noise=comparison.point_noise,
        narrowing=_narrowing_of(list(evaluations.values())),
    )


def _overall(rates: Sequence[Interval]) -> float:
    return math.fsum(rate.mean * rate.windows for rate in rates) / sum(rate.windows for rate in rates)


def _narrowing_of(evaluations: Sequence[Evaluation]) -> Narrowing | None:
    """The newest that was measured: an evaluation without questions does not undo what one with them found."""
    found = [one.narrowing for one in evaluations if one.narrowing is not None]
    measured = [one for one in found if one.candidate is not None]
    return next(reversed(measured or found), None)
