"""Patterns of faults with their counts by week and agent, and which of them are more than chance.

Each pattern is asked up to three questions, each with an exact test: is it *frequent* (in more than one trajectory in
two hundred), is it *rising* (in the newest week against those before), is it *one agent's* (the one that has most of
it against all others, corrected for having been picked). The p-values of all patterns and questions together pass the
Benjamini-Hochberg procedure: of those that are called significant at most one in twenty is expected to be chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from data_bridge.window_ids import start_of
from trainer.patterns.faults import Fault, FaultSource, Observed
from trainer.patterns.templates import Templates

RARE = 0.005
"""The share of trajectories up to which something that goes wrong is not called frequent."""
FALSE_SHARE = 0.05
MOST_SHOWN = 12


@dataclass(slots=True)
class _Group:
    """The trajectories of one pattern while they are counted."""

    source: FaultSource
    words: Sequence[str]
    members: dict[str, Observed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """What went wrong in the same way in several trajectories."""

    source: FaultSource
    template: str
    trajectories: tuple[str, ...]
    """In the order of the log, each once."""
    by_week: Mapping[str, int]
    by_agent: Mapping[str, int]
    frequent: float
    rising: float | None
    """None without weeks before."""
    one_agents: float | None
    """None with a single agent."""
    significant: tuple[str, ...] = ()
    """Which of ``frequent``, ``rising`` and ``one agent's`` it is, with all patterns taken into account."""

    @property
    def worst_agent(self) -> str:
        return max(self.by_agent, key=lambda agent: self.by_agent[agent])


def week_of(window_id: str) -> str:
    year, week, _ = start_of(window_id).isocalendar()
    return f"{year}-W{week:02}"


def patterns_of(rows: Iterable[Observed]) -> tuple[ErrorPattern, ...]:
    """The patterns of these trajectories, significant ones first, then the most frequent."""
    seen = _merged(rows)
    weeks = Counter(week_of(one.window_id) for one in seen)
    agents = Counter(one.agent_id for one in seen)
    counted = [_counted(group, weeks, agents) for group in _grouped(seen)]
    return tuple(
        sorted(_controlled(counted), key=lambda one: (not one.significant, -len(one.trajectories), one.template))
    )


def _merged(rows: Iterable[Observed]) -> list[Observed]:
    """Each trajectory once, with all that is known to have gone wrong in it, in the order of the log."""
    found: dict[str, Observed] = {}
    for one in rows:
        before = found.get(one.trajectory_id)
        faults = one.faults if before is None else tuple(dict.fromkeys((*before.faults, *one.faults)))
        found[one.trajectory_id] = Observed(one.trajectory_id, one.agent_id, one.window_id, faults)
    return sorted(found.values(), key=lambda one: (one.window_id, one.trajectory_id))


def _grouped(seen: Sequence[Observed]) -> list[_Group]:
    """Codes as they are, texts by template: closed lists first, so that no text can pass for a code."""
    templates = {source: Templates() for source in FaultSource}
    groups: dict[tuple[FaultSource, int | str], _Group] = {}
    for one in seen:
        for fault in one.faults:
            words = _words(fault, templates[fault.source])
            if words is not None:
                key = fault.text if fault.source is FaultSource.CODE else id(words)
                groups.setdefault((fault.source, key), _Group(fault.source, words)).members[one.trajectory_id] = one
    return list(groups.values())


def _words(fault: Fault, templates: Templates) -> Sequence[str] | None:
    return (fault.text,) if fault.source is FaultSource.CODE else templates.add(fault.text)


def _counted(group: _Group, weeks: Mapping[str, int], agents: Mapping[str, int]) -> ErrorPattern:
    import numpy as np
    from scipy.stats import binomtest, fisher_exact

    def more(own: int, of_own: int, others: int, of_others: int) -> float:
        if len(group.members) < 2:
            return 1.0  # a single one is no pattern, and most texts are single
        table = np.array([[own, of_own - own], [others, of_others - others]])
        return float(fisher_exact(table, alternative="greater").pvalue)

    members, total = list(group.members.values()), sum(weeks.values())
    by_week = Counter(week_of(one.window_id) for one in members)
    by_agent = Counter(one.agent_id for one in members)
    newest = max(weeks)
    worst = max(by_agent, key=lambda agent: (by_agent[agent] / agents[agent], agent))
    rest = (len(members) - by_agent[worst], total - agents[worst])
    return ErrorPattern(
        group.source,
        " ".join(group.words),
        tuple(group.members),
        dict(sorted(by_week.items())),
        dict(by_agent.most_common()),
        frequent=1.0 if len(members) < 2 else float(binomtest(len(members), total, RARE, alternative="greater").pvalue),
        rising=None
        if len(weeks) < 2
        else more(by_week[newest], weeks[newest], len(members) - by_week[newest], total - weeks[newest]),
        one_agents=None if len(agents) < 2 else min(1.0, len(agents) * more(by_agent[worst], agents[worst], *rest)),
    )


def _controlled(patterns: Sequence[ErrorPattern]) -> list[ErrorPattern]:
    from scipy.stats import false_discovery_control

    asked = [
        (place, question, p)
        for place, one in enumerate(patterns)
        for question, p in (("frequent", one.frequent), ("rising", one.rising), ("one agent's", one.one_agents))
        if p is not None
    ]
    if not asked:
        return list(patterns)
    kept: dict[int, list[str]] = {}
    for (place, question, _), p in zip(asked, false_discovery_control([p for _, _, p in asked]), strict=True):
        if p <= FALSE_SHARE:
            kept.setdefault(place, []).append(question)
    return [replace(one, significant=tuple(kept.get(place, ()))) for place, one in enumerate(patterns)]
