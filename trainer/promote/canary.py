"""How a canary's agents changed against everybody else since it started, and what follows.

The gate has already shown on later windows that the checkpoint is better; the canary looks for harm in the live
game. What is compared is each agent's mean score since then minus its own mean in the four weeks before, beside the
same difference of all other agents in the same hours: it does not matter who was chosen, nor what the hours were like.
Scores are verdicts of our own ledger, so nobody can claim them. Agents are the units, because agents were randomised;
and a ruling must hold whichever one of the canary's agents is left out, so that no single agent makes it.

There are few looks, after fixed numbers of judged windows in the order in which they were judged. Each is recomputed
from the ledger whenever somebody asks, and the first that decides counts: looking often changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from data_bridge.agent_prompts import AgentTemplate, prompts_used
from data_bridge.database import Database
from data_bridge.lesson_prompts import lessons_in, policy_named
from data_bridge.lookup import agents_of, read_trajectories
from data_bridge.models import AgentTrajectory, Author
from data_bridge.quality import Rules
from data_bridge.window_ids import start_of, window_of
from trainer.evidence import Interval
from trainer.ledger.prompts import prompts_of
from trainer.ledger.releases import Promotion, canary_agents_of, running_canaries, running_canary
from trainer.ledger.scores import JudgedScore, judged_scores
from trainer.progress import counted
from trainer.promote.publish import CanaryChanged, end_canary, finish_canary
from trainer.statistics.units import MIN_OTHERS, critical_values, trimmed
from trainer.types import Checkpoint

MARGIN = 0.05
"""How much worse a finished canary may still be, in the judge's score."""

LOOKS = ((12, 0.001), (48, 0.0025), (168, 0.0065), (336, 0.0125), (588, 0.025), (1176, 0.0025))
"""Windows at each look, and the chance of a wrong ruling in each direction that it may add: 5 % together, most of it
where four weeks of hourly windows are in. The first looks are for disasters."""

PAST = timedelta(days=28)
MIN_PAST = 24
"""Judged windows that an agent's own past must have."""


class CanaryRuling(StrEnum):
    FINISH = "finish"
    ROLL_BACK = "roll_back"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class CanaryEvidence:
    """The judged windows since a canary started, in the order in which they were judged."""

    changes: NDArray[np.float64]
    """Score of an agent (row) in a window (column) minus the mean of its own past; NaN where it has none."""
    is_canary: NDArray[np.bool_]
    untried: int = 0
    """Windows in which the canary's agents played, but their log does not name its checkpoint."""
    without_past: int = 0
    """Agents that were judged since, but hardly or not before."""

    @property
    def windows(self) -> int:
        return int(self.changes.shape[1])


NOTHING = CanaryEvidence(np.empty((0, 0)), np.empty(0, dtype=bool))


@dataclass(frozen=True, slots=True)
class CanaryDecision:
    ruling: CanaryRuling
    reason: str
    difference: Interval | None = None
    measure: str = "judge score"


def decide(evidence: CanaryEvidence) -> CanaryDecision:
    """The ruling of the first look that decides. Pure."""
    last: CanaryDecision | None = None
    for place, (windows, _) in enumerate(LOOKS):
        if evidence.windows < windows:
            break
        decision = _look(evidence, place)
        if decision is not None and decision.ruling is not CanaryRuling.WAIT:
            return decision
        last = decision or last
    shown = "" if last is None else f"{last.reason}: not decided; "
    needed = _what_is_needed(evidence)
    return CanaryDecision(CanaryRuling.WAIT, f"{shown}{needed}", None if last is None else last.difference)


def _look(evidence: CanaryEvidence, place: int) -> CanaryDecision | None:
    """One look; None if too few agents have played in a quarter of its windows."""
    windows = LOOKS[place][0]
    seen = evidence.changes[:, :windows]
    regular = np.count_nonzero(~np.isnan(seen), axis=1) >= windows / 4
    canary, others = _means(seen, regular & evidence.is_canary), _means(seen, regular & ~evidence.is_canary)
    if not len(canary) or len(others) < MIN_OTHERS:
        return None
    centre, spread = (float(value) for value in trimmed(others))
    half = critical_values(len(canary), len(others), LOOKS)[place] * spread
    gain = float(canary.mean()) - centre
    difference = Interval(mean=gain, low=gain - half, high=gain + half, windows=windows)
    # Each in turn left out, so that no single one of the canary's agents makes the ruling.
    parts = [np.delete(canary, one) for one in range(len(canary))] if len(canary) > 1 else [canary]
    gains = np.array([part.mean() for part in parts]) - centre
    certain = critical_values(len(parts[0]), len(others), LOOKS)[place] * spread
    shown = (
        f"judge score of {counted(len(canary), 'agent')} with the canary minus that of {len(others)} without, each "
        f"against its own past, {gain:+.3g} (interval over all looks {gain - half:+.3g} to {gain + half:+.3g}, "
        f"{counted(windows, 'window')})"
    )
    if (gains < -certain).all():
        return CanaryDecision(CanaryRuling.ROLL_BACK, f"{shown}: clearly worse", difference)
    if (gains + MARGIN > certain).all():
        return CanaryDecision(CanaryRuling.FINISH, f"{shown}: not worse by more than {MARGIN:g}", difference)
    return CanaryDecision(CanaryRuling.WAIT, shown, difference)


def _means(changes: NDArray[np.float64], agents: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Each agent's mean change, beside the mean of everybody in the same windows."""
    beside: NDArray[np.float64] = changes - np.nanmean(changes, axis=0)
    return np.asarray(np.nanmean(beside[agents], axis=1), dtype=np.float64)


def _what_is_needed(evidence: CanaryEvidence) -> str:
    number = evidence.windows
    upcoming = next((windows for windows, _ in LOOKS if windows > number), None)
    agents = int(evidence.is_canary.sum()), int((~evidence.is_canary).sum())
    if upcoming is None:
        said = "no further look: decide with `promote.py --finish --force --reason WHY` or `--rollback`"
    else:
        said = f"{counted(number, 'judged window')} so far, the next look is at {upcoming}"
    if number == 0:
        said += "; training judges windows, and so does `judge_windows.py`"
    if not agents[0] or agents[1] < MIN_OTHERS:
        said += (
            f"; {counted(agents[0], 'agent')} with the canary and {agents[1]} without have a past of {MIN_PAST} judged "
            f"windows or more in the {PAST.days} days before it, 1 and {MIN_OTHERS} are needed"
        )
    if evidence.without_past:
        said += f"; {counted(evidence.without_past, 'agent')} without such a past cannot be compared"
    if evidence.untried:
        said += (
            f"; in {counted(evidence.untried, 'window')} the canary's agents did not use it, according to their log: "
            "they must send their agent id as `user`, and log the model that the reply names"
        )
    return said


# The evidence


@dataclass(slots=True)
class _Agent:
    past: list[float] = field(default_factory=list)
    since: dict[str, JudgedScore] = field(default_factory=dict)


async def evidence_of(database: Database, trial: Promotion, now: datetime) -> CanaryEvidence:
    """What our ledger knows of the canary's agents and of all others, before it started and since."""
    after = trial.canary_after or window_of(trial.created_at)
    found = await judged_scores(database, window_of(start_of(after) - PAST), window_of(now))
    scores = _of_one_judge(found, after)
    if not scores:
        return NOTHING
    owners = await agents_of(database, [one.trajectory_id for one in scores])
    agents = _by_agent(scores, owners, after)
    canary = await canary_agents_of(database.pool, trial)
    templates = [one.template for one in (await prompts_of(database.pool, trial.prompt_version)).values()]
    theirs = [one.trajectory_id for name in canary if name in agents for one in agents[name].since.values()]
    tried = {
        trajectory.trajectory_id
        async for trajectory in read_trajectories(database, theirs, Rules().max_bytes)
        if used(trajectory, trial.checkpoint)
        and was_shown(trajectory, trial.lessons_policy)
        and was_prompted(trajectory, templates)
    }
    return _arranged(agents, canary, tried)


def _of_one_judge(scores: Sequence[JudgedScore], after: str) -> list[JudgedScore]:
    """The scores of the judge that judged most windows since: those of another cannot be compared with them."""
    windows = {(one.judge, one.window_id) for one in scores if one.window_id > after}
    judges = Counter(judge for judge, _ in windows)
    chosen = max(judges, key=lambda judge: (judges[judge], judge), default=None)
    return [one for one in scores if one.judge == chosen]


def _by_agent(scores: Sequence[JudgedScore], owners: Mapping[str, str], after: str) -> dict[str, _Agent]:
    """Each agent's scores, one per window: the first verdict counts."""
    agents: dict[str, _Agent] = defaultdict(_Agent)
    known: set[tuple[str, str]] = set()
    for one in sorted(scores, key=lambda one: (one.judged_at, one.trajectory_id)):
        owner = owners.get(one.trajectory_id)
        if owner is None or (owner, one.window_id) in known:
            continue
        known.add((owner, one.window_id))
        if one.window_id > after:
            agents[owner].since[one.window_id] = one
        else:
            agents[owner].past.append(one.score)
    return agents


def _arranged(agents: Mapping[str, _Agent], canary: Collection[str], tried: Collection[str]) -> CanaryEvidence:
    """The evidence of the windows in which both sides can be compared."""
    playing = sorted(name for name, own in agents.items() if own.since)
    known = [name for name in playing if len(agents[name].past) >= MIN_PAST]
    sides: dict[str, list[set[str]]] = defaultdict(lambda: [set(), set(), set()])
    judged_at: dict[str, datetime] = {}
    for name in playing:
        for window, one in agents[name].since.items():
            is_untried = name in canary and one.trajectory_id not in tried
            sides[window][2 if is_untried else 0 if name in canary else 1].add(name)
            judged_at[window] = max(judged_at.get(window, one.judged_at), one.judged_at)
    both = [window for window, (ours, others, _) in sides.items() if ours & set(known) and others & set(known)]
    windows = sorted(both, key=lambda window: (judged_at[window], window))
    changes = np.full((len(known), len(windows)), np.nan)
    for row, name in enumerate(known):
        own, usual = agents[name], fmean(agents[name].past)
        for column, window in enumerate(windows):
            if window in own.since and name not in sides[window][2]:
                changes[row, column] = own.since[window].score - usual
    return CanaryEvidence(
        changes,
        np.array([name in canary for name in known], dtype=bool),
        untried=sum(1 for ours, _, unused in sides.values() if unused and not ours),
        without_past=len(playing) - len(known),
    )


def used(trajectory: AgentTrajectory, checkpoint: Checkpoint) -> bool:
    """Whether the log says that ``checkpoint`` answered, and no other checkpoint of its model."""
    authors = {author for call in trajectory.llm_calls if (author := call.author).model == checkpoint.model}
    return authors == {Author(checkpoint.model, checkpoint.step)}


def was_shown(trajectory: AgentTrajectory, lessons_policy: str) -> bool:
    """Whether its prompts had lessons as ``lessons_policy`` has them; without a policy, whether they had none."""
    policy = policy_named(lessons_policy)
    shown = [len(lessons_in(call.chat())) for call in trajectory.llm_calls]
    return not any(shown) if policy is None else any(shown) and max(shown) <= policy.number


def was_prompted(trajectory: AgentTrajectory, templates: Sequence[AgentTemplate]) -> bool:
    """Whether its calls began with one of these prompts, by their messages; without any, nothing is asked."""
    return not templates or None not in prompts_used(trajectory, templates)


# What follows


async def settle_canary(database: Database, home: Path, model: str, *, now: datetime) -> CanaryDecision | None:
    """Finish, roll back or leave the running canary, by its agents' results; None if none is running (any more)."""
    trial = await running_canary(database, model)
    if trial is None:
        return None
    decision = decide(await evidence_of(database, trial, now))
    try:
        if decision.ruling is CanaryRuling.FINISH:
            await finish_canary(database, home, model, outcome=decision.reason, trial=trial)
        elif decision.ruling is CanaryRuling.ROLL_BACK:
            await end_canary(database, home, model, outcome=decision.reason, trial=trial)
    except CanaryChanged:
        return None
    return decision


async def settle_canaries(database: Database, home: Path, *, now: datetime) -> dict[str, CanaryDecision]:
    """Settle every model's canary. Returns the decision by the checkpoint's name."""
    decisions: dict[str, CanaryDecision] = {}
    for trial in await running_canaries(database):
        decision = await settle_canary(database, home, trial.checkpoint.model, now=now)
        if decision is not None:
            decisions[trial.release.name] = decision
    return decisions
