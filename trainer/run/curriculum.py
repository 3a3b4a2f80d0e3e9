"""The curriculum of a run: which world each hour of a day is played in, and in which order a log is trained.

A round is drawn and stored before it is used; a resumed run takes what is stored. The aim follows from the round
before, whichever run of the model drew it, and patterns of errors make the arms that show them likelier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from data_bridge.discovery import WindowRef
from trainer.config.derived import feeds_patterns_back
from trainer.judge.open import identity_of
from trainer.ledger.curriculum import (
    Kind,
    Round,
    draws_of,
    keep_round,
    last_round,
    patterned_share,
    played_results,
    score_to_beat,
    scores_known,
    times_drawn,
)
from trainer.ledger.simulation import known_states
from trainer.plan.difficulty import ARMS, UNKNOWN, Measured, measure, of_scores
from trainer.plan.plan import Outlook
from trainer.run.session import Session
from trainer.statistics.curriculum import Arm, Result, chances, draw, equal_chances, in_order, moved, with_patterns
from trainer.types import PlannedWindow
from trainer.world.agents import Exploration
from trainer.world.arms import arms_of
from trainer.world.rules import SimulatedWorld
from trainer.world.worlds import rules_of

_FIRST_AIM: Mapping[Kind, float] = {"market": 0.0, "log": 0.5}
"""A market begins easy; what agents logged is where they are."""


async def worlds_of_day(
    session: Session, run_id: str, world: SimulatedWorld, window_ids: Sequence[str]
) -> dict[str, SimulatedWorld]:
    """The world of each hour of a day; nothing without a curriculum. Drawn once: the same after a kill."""
    how = session.settings.run.curriculum
    if how == "off":
        return {}
    worlds = rules_of(world).easier(world)
    stored = await draws_of(session.database.pool, run_id)
    if not all(window_id in stored for window_id in window_ids):
        stored = await _draw_day(session, run_id, arms_of(list(worlds)), window_ids)
    drawn = {window_id: stored[window_id] for window_id in window_ids}
    counts = Counter(drawn.values())
    session.view.say("curriculum: " + ", ".join(f"{name} {counts[name]}" for name in worlds))
    return {window_id: worlds[name] for window_id, name in drawn.items()}


async def _draw_day(session: Session, run_id: str, arms: Sequence[Arm], window_ids: Sequence[str]) -> dict[str, str]:
    database, settings, model = session.database, session.settings, session.settings.model.model
    last = await last_round(database, model, "market")
    results = {} if last is None else await played_results(database.pool, last.draws)
    aim = _next_aim("market", last, results)
    counted = await times_drawn(database, model, "market", arms)
    weighed = await _weighed(session, arms, last)
    likely = equal_chances(weighed) if settings.run.curriculum == "uniform" else chances(weighed, aim)
    chosen = draw(weighed, likely, counted, window_ids, f"{settings.chance.seed}:{model}")
    draws = {window_id: arm.name for window_id, arm in zip(window_ids, chosen, strict=True)}
    made = Round(_after(last), aim, draws, {})
    await keep_round(database, session.lock, run_id, "market", made, dict(zip(weighed, likely, strict=True)))
    return draws


async def joined(
    session: Session, exploration: Exploration, world: SimulatedWorld, window_ids: Sequence[str]
) -> Exploration:
    """Exploration as the curriculum has it: more where the log was thin when the day began, none where it is risky."""
    known = await known_states(session.database, world.seed, window_ids[0])
    return replace(exploration, known_states=known, is_careful=True)


async def in_curriculum_order(
    session: Session, run_id: str, outlook: Outlook
) -> tuple[Sequence[PlannedWindow], Sequence[WindowRef]]:
    """The planned windows in the order in which the curriculum draws them; as planned without one."""
    how = session.settings.run.curriculum
    if how != "auto" or not outlook.windows:
        return outlook.windows, outlook.refs
    stored = await draws_of(session.database.pool, run_id)
    planned = [window.window_id for window in outlook.windows]
    fresh = [window_id for window_id in planned if window_id not in stored]
    if fresh:
        stored |= await _draw_log(session, run_id, outlook, fresh)
    place = {window_id: number for number, window_id in enumerate(stored)}
    refs = sorted(outlook.refs, key=lambda one: place[one.window_id])
    return outlook.windows.sorted(lambda one: place[one.window_id]), refs


async def _draw_log(session: Session, run_id: str, outlook: Outlook, fresh: Sequence[str]) -> dict[str, str]:
    database, settings, model = session.database, session.settings, session.settings.model.model
    last = await last_round(database, model, "log")
    judge, least = identity_of(settings.judge), settings.groups.min_spread
    names = [*fresh, *([] if last is None else last.draws)]
    scores = await scores_known(database.pool, names, judge.judge) if judge.is_llm else {}
    baseline = await score_to_beat(database.pool, model, judge.judge) if judge.is_llm else None
    aim = _FIRST_AIM["log"]
    if last is not None:
        judged = {name: of_scores(own, baseline, least).result for name, own in scores.items() if name in last.draws}
        aim = _next_aim("log", last, {**last.measured, **judged})
    found = measure(outlook.surveyed.windows, scores, baseline, least)
    weighed = {arm.name: arm for arm in await _weighed(session, ARMS, last)}
    members: dict[Arm, list[str]] = {arm: [] for arm in weighed.values()}
    for window_id in fresh:
        members[weighed[_arm_of(found.get(window_id)).name]].append(window_id)
    drawn = in_order(members, aim, f"{settings.chance.seed}:{model}:{_after(last)}")
    draws = {window_id: arm.name for window_id, arm in drawn.items()}
    measured = {name: found[name].result for name in fresh if name in found and found[name].result.tried}
    present = [arm for arm, own in members.items() if own]
    made = Round(_after(last), aim, draws, measured)
    arms = dict(zip(present, chances(present, aim), strict=True))
    await keep_round(database, session.lock, run_id, "log", made, arms)
    counts = Counter(draws.values())
    session.view.say("curriculum: " + ", ".join(f"{arm.name} {counts[arm.name]}" for arm in present))
    return draws


def _arm_of(measured: Measured | None) -> Arm:
    return UNKNOWN if measured is None else measured.arm


def _after(last: Round | None) -> int:
    return 1 if last is None else last.number + 1


def _next_aim(kind: Kind, last: Round | None, results: Mapping[str, Result]) -> float:
    return _FIRST_AIM[kind] if last is None else moved(last.aim, list(results.values()))


async def _weighed(session: Session, arms: Sequence[Arm], last: Round | None) -> list[Arm]:
    """The arms, heavier where the windows of the last round show patterns of errors."""
    if last is None or not feeds_patterns_back(session.settings.training, session.settings.run):
        return list(arms)
    shares = await patterned_share(session.database, session.settings.model.model, last.draws)
    return with_patterns(arms, last.draws, shares)
