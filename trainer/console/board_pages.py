"""The pages beside *Now* and *Runs*: releases, data, rewards, judge, patterns, advice, system; and their forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby

from starlette.responses import Response

from trainer.console import release_api, shown
from trainer.console.problems import Refused
from trainer.console.services import audited
from trainer.console.visits import Shown, Visit
from trainer.ledger.read.boards import JudgeDay, judge_board, system_facts
from trainer.ledger.read.listings import PatternRow, list_audit, list_windows, patterns_by_week
from trainer.ledger.read.reward_history import reward_board, reward_history

# Releases


async def releases_page(visit: Visit) -> Response:
    from trainer.run.promotion import canary_progress

    found = await release_api.releases_of(visit.services, visit.model)
    trial = None if found.canary is None else await canary_progress(visit.services.database, visit.model)
    return visit.page("releases", "Releases", found=found, trial=trial)


def _reason(form: Mapping[str, str]) -> str:
    reason = form.get("reason", "")
    if not reason:
        raise Refused(422, "Say why: the reason is kept with the release.")
    return reason[:500]


def _release(form: Mapping[str, str]) -> str:
    name = form.get("release", "")
    if re.search(release_api.RELEASE, name) is None:
        raise Refused(422, "Name a release, such as hindsight@step3.")
    return name


async def promote_form(visit: Visit) -> Response:
    form = await visit.form()
    name, reason, force = _release(form), _reason(form), form.get("force") == "yes"
    share = float(form["share"]) / 100 if form.get("share", "").isdecimal() else None
    if share is not None and not 0 < share < 1:
        raise Refused(422, "The share of the agents is between 1 and 99 per cent.")
    deed = f"{'promote' if share is None else 'start canary'}{' by force' if force else ''}"
    async with audited(visit.services, visit.caller, visit.request, deed, name, reason):
        await release_api.promote(visit.services, name, reason=reason, force=force, share=share)
    return visit.back("/releases", "promoted" if share is None else "canary-started")


async def rollback_form(visit: Visit) -> Response:
    form = await visit.form()
    name, reason = (_release(form) if form.get("release") else None), _reason(form)
    async with audited(visit.services, visit.caller, visit.request, "roll back", name or visit.model, reason):
        await release_api.roll_back_to(visit.services, name, visit.model, reason=reason)
    return visit.back("/releases", "rolled-back")


async def canary_form(visit: Visit) -> Response:
    form = await visit.form()
    reason, is_end, force = _reason(form), form.get("action") == "end", form.get("force") == "yes"
    deed = "end canary" if is_end else f"finish canary{' by force' if force else ''}"
    async with audited(visit.services, visit.caller, visit.request, deed, visit.model, reason):
        if is_end:
            await release_api.end(visit.services, visit.model, reason=reason)
        else:
            await release_api.settle(visit.services, visit.model, reason=reason, force=force)
    return visit.back("/releases", "canary-ended" if is_end else "canary-finished")


# Data


async def data_page(visit: Visit) -> Response:
    check = visit.services.check
    check.ask()
    windows = await list_windows(visit.services.database, visit.model, limit=50)
    weeks = await patterns_by_week(visit.services.database, visit.model, date.today() - timedelta(weeks=8))
    return visit.page(
        "data",
        "Data",
        report=check.report,
        checked_at=check.checked_at,
        is_checking=check.is_checking,
        fault=check.fault,
        windows=windows,
        weeks=by_week(weeks),
    )


# Rewards


async def rewards_page(visit: Visit) -> Response:
    database = visit.services.database
    asked = visit.request.query_params
    agent, role = asked.get("agent") or None, asked.get("role") or None
    board = await reward_board(database, visit.model)
    rows = await reward_history(database, agent_id=agent, role=role, model=visit.model, limit=50)
    return visit.page(
        "rewards", "Rewards", board=board, rows=rows, agent=agent, role=role, drift=shown.drift(board.weeks)
    )


# The judge


@dataclass(frozen=True, slots=True)
class SpentDay:
    day: date
    usd: float
    calls: int
    failed: int


def by_day(days: tuple[JudgeDay, ...]) -> list[SpentDay]:
    """All judges together."""
    return [
        SpentDay(day, sum(one.usd for one in own), sum(one.calls for one in own), sum(one.failed for one in own))
        for day, group in groupby(days, key=lambda one: one.day)
        for own in [list(group)]
    ]


async def judge_page(visit: Visit) -> Response:
    board = await judge_board(visit.services.database)
    days = by_day(board.days)
    return visit.page("judge", "Judge", board=board, days=days, spend=shown.spend([(one.day, one.usd) for one in days]))


# Patterns


@dataclass(frozen=True, slots=True)
class PatternTrend:
    """One error over the weeks, the oldest first."""

    pattern: str
    counts: tuple[int, ...]
    agents: int
    example: str

    @property
    def change(self) -> int:
        """Of the newest week against the one before."""
        return self.counts[-1] - self.counts[-2] if len(self.counts) > 1 else 0


@dataclass(frozen=True, slots=True)
class PatternWeeks:
    weeks: tuple[date, ...]
    trends: tuple[PatternTrend, ...]


def by_week(rows: list[PatternRow]) -> PatternWeeks:
    """The patterns as a table: a row each, a column a week. Pure."""
    weeks = tuple(sorted({row.week for row in rows}))
    names = sorted({row.pattern for row in rows})
    trends = []
    for name in names:
        own = {row.week: row for row in rows if row.pattern == name}
        newest = own[max(own)]
        counts = tuple(own[week].count if week in own else 0 for week in weeks)
        trends.append(PatternTrend(name, counts, newest.agents, newest.example))
    return PatternWeeks(weeks, tuple(sorted(trends, key=lambda one: (-one.counts[-1], one.pattern))))


async def patterns_page(visit: Visit) -> Response:
    rows = await patterns_by_week(visit.services.database, visit.model, date.today() - timedelta(weeks=8))
    return visit.page("patterns", "Patterns", table=by_week(rows))


# Advice


async def advice_page(visit: Visit) -> Response:
    from trainer.advice.advisor import REASONS
    from trainer.ledger.read.advice import advice_board

    target = visit.services.wanted_precision
    board = await advice_board(visit.services.database, visit.model, target)
    return visit.page("advice", "Advice", board=board, target=target, reasons=REASONS)


# The system


async def system_page(visit: Visit) -> Response:
    facts = await system_facts(visit.services.database)
    deeds = await list_audit(visit.services.database, limit=50)
    return visit.page("system", "System", facts=facts, deeds=deeds, streams=visit.services.hub.streams)


PAGES: Mapping[str, Shown] = {
    "/releases": releases_page,
    "/data": data_page,
    "/rewards": rewards_page,
    "/judge": judge_page,
    "/patterns": patterns_page,
    "/advice": advice_page,
    "/system": system_page,
}
FORMS: Mapping[str, Shown] = {
    "/releases/promote": promote_form,
    "/releases/rollback": rollback_form,
    "/releases/canary": canary_form,
}
