"""Is this judge with this rubric fit to train on?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from data_bridge.errors import NotEnoughData
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.data_commands import CertifySettings
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.certify.examine import Examined, Examiners
    from trainer.certify.material import Material, OutcomeShares
    from trainer.ledger.certificates import Line
    from trainer.types import Group, JudgeIdentity

_NOT_FIT = 4


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        CertifySettings,
        argv,
        prog="certify_judge.py",
        description="Examines the judge: does it judge decisions, or order, luck, length and flattery?\n"
        "The result is stored with the versions of the judge and the rubric; train_mmo.py checks it.",
        epilog="exit codes:\n  0 fit to train on; 2 configuration; 3 too few windows; 4 not fit, or the judge failed",
    )


@dataclass(frozen=True, slots=True)
class _Examination:
    """One judge, examined: in one pass, or in two."""

    identity: JudgeIdentity
    lines: Sequence[Line]
    certificate: str
    calls: int
    cost_usd: float
    unmeasured: Mapping[str, str]

    @property
    def passed(self) -> bool:
        return all(line.passed for line in self.lines)

    def of(self, name: str) -> float | None:
        return next((line.value for line in self.lines if line.name == name), None)


async def _work(settings: CertifySettings) -> int:
    """With two passes the judge is examined in one pass as well: whether the second is worth its price."""
    from data_bridge.worlds.load import load_world
    from trainer.certify.material import simulated
    from trainer.judge.cost import is_priced
    from trainer.judge.open import refuse_unusable
    from trainer.ledger.certificates import gaps_in

    asked = settings.examination
    is_market = load_world(settings.windows.world).reads_markets
    planted = simulated(asked.examined_groups, asked.group_agents, asked.seed) if is_market else None
    refuse_unusable(settings.judge.asked_in(orders=1), settings.secrets)
    async with database_of(settings, migrate=True) as database:
        own = [await _own_windows(settings, database)] if asked.own_windows or planted is None else []
        materials = [*([] if planted is None else [planted]), *own]
        found = [
            await _examined(settings, database, materials, passes)
            for passes in range(1, settings.judge.judge_passes + 1)
        ]
    groups = " and ".join(f"{counted(len(material.groups), 'group')} ({material.name})" for material in materials)
    last, is_known = found[-1], is_priced(settings.judge)
    shares = None if planted is None else planted.shares
    if settings.output.json_output:
        _print_json(found, shares, is_known=is_known)
    else:
        for one in found:
            cost = one.cost_usd if is_known else None
            _print_table(one.identity, one.lines, shares, f"{groups}, {counted(one.calls, 'call')}", cost)
        if len(found) > 1:
            say(_compared(*found))
        if gaps := gaps_in(_unmeasured(materials)):
            say(gaps)
    return 0 if last.passed else _NOT_FIT


async def _examined(
    settings: CertifySettings, database: Database, materials: Sequence[Material], passes: int
) -> _Examination:
    from trainer.certify.examine import examine
    from trainer.certify.measures import lines_of
    from trainer.judge.open import identity_of
    from trainer.ledger.certificates import keep

    identity = identity_of(settings.judge.asked_in(1, passes), with_steps=settings.judge.step_credit)
    _announce(settings, identity, materials, passes)
    async with AsyncExitStack() as stack:
        examiners = await _open(settings, identity, database, stack, passes)
        lines: list[Line] = []
        for material in materials:
            with alive(f"examining {identity.judge}", quiet=settings.output.json_output):
                measured = lines_of(await examine(examiners, material))
            lines += [replace(line, name=f"{line.name}{material.where}") for line in measured]
        certificate = await keep(
            database,
            identity,
            lines,
            material=" and ".join(material.name for material in materials),
            groups=sum(len(material.groups) for material in materials),
            calls=examiners.calls,
            cost_usd=examiners.cost_usd,
            unmeasured=_unmeasured(materials),
        )
    return _Examination(identity, lines, certificate, examiners.calls, examiners.cost_usd, _unmeasured(materials))


def _unmeasured(materials: Sequence[Material]) -> dict[str, str]:
    """What no line of the certificate speaks of, and why."""
    from trainer.certify.measures import unmeasured_in

    return {name: why for material in materials for name, why in unmeasured_in(material).items()}


def _compared(one_pass: _Examination, two_passes: _Examination) -> str:
    """Whether the second pass is worth it for this judge: less luck, and no less skill."""
    luck, skill = ((one_pass.of(name), two_passes.of(name)) for name in ("outcome", "skill"))
    if None in (*luck, *skill):
        return "Whether two passes are worth it could not be measured."
    said = f"In two passes the outcome moves a score by {luck[1]:.2f} of the contrast instead of {luck[0]:.2f}; skill "
    return f"{said}{skill[1]:.2f} instead of {skill[0]:.2f}. Two passes are twice the calls (--judge-passes 2)."


async def _own_windows(settings: CertifySettings, database: Database) -> Material:
    """The user's own windows, besides the simulated hours: in those alone it is known which decisions are sound."""
    from trainer.certify.material import PROBED, own

    groups = await _own_groups(settings, database, PROBED)
    if len(groups) < PROBED:
        raise NotEnoughData(
            f"The windows give {counted(len(groups), 'group')} and --own-windows needs {PROBED}, each from a window of "
            "its own: use a longer --lookback."
        )
    return own(groups)


async def _own_groups(settings: CertifySettings, database: Database, number: int) -> list[Group]:
    """The first group of each of the first ``number`` windows that have one."""
    from data_bridge.quality import check
    from data_bridge.reader import WindowReader
    from trainer.config.derived import window_rules
    from trainer.ledger.clock import clock
    from trainer.plan.grouping import form_groups

    rules = window_rules(settings.windows, now=await clock(database, settings.windows.until))
    reader = WindowReader(database, rules)
    found: list[Group] = []
    async with aclosing(reader.stream(await reader.discover())) as windows:
        async for window in windows:
            found += form_groups(check(window, rules), settings.groups, settings.examination.seed).groups[:1]
            if len(found) == number:
                break
    return found


def _announce(settings: CertifySettings, identity: JudgeIdentity, materials: Sequence[Material], passes: int) -> None:
    from trainer.certify.examine import calls_needed
    from trainer.judge.cost import estimate
    from trainer.judge.text import count_tokens
    from trainer.judge.view import view_of

    calls = tokens = scored = 0
    for material in materials:
        first = view_of(material.groups[0], settings.judge.purposes)
        needed = calls_needed(material)
        calls += needed
        tokens += needed * sum(count_tokens(body.whole) for body in first.trajectories)
        scored += needed * sum(body.decisions for body in first.trajectories)
    asked = settings.judge.asked_in(1, passes)
    decisions = sum(len(group.trajectories) for material in materials for group in material.groups)
    price = estimate(calls, tokens, asked, scored_decisions=scored if settings.judge.step_credit else 0)
    how = " in two passes" if identity.has_two_passes else ""
    say(f"Examining {identity.judge} on {counted(decisions, 'decision')}{how}: {price}.", to=sys.stderr)


async def _open(
    settings: CertifySettings, identity: JudgeIdentity, database: Database, stack: AsyncExitStack, passes: int
) -> Examiners:
    """Three views of the judge under one cost limit. ``--fresh`` ignores stored verdicts: the endpoint may differ."""
    from trainer.certify.examine import Examiners
    from trainer.judge.open import open_judge

    occasion = f" {datetime.now(UTC).isoformat()}" if settings.examination.fresh else ""
    run_id = f"certify {identity.judge} {identity.rubric_version}{occasion}"

    async def view(orders: int, purpose: str, beside: Examined | None = None) -> Examined:
        asked = settings.judge.asked_in(orders, passes)
        opened = open_judge(
            asked,
            settings.secrets,
            database,
            run_id,
            purpose=purpose + occasion,
            beside=beside,
            with_steps=settings.judge.step_credit,
        )
        return await stack.enter_async_context(opened)

    first = await view(1, "certify")
    return Examiners(first, await view(2, "certify", first), await view(1, "certify again", first))


def _print_json(found: Sequence[_Examination], shares: OutcomeShares | None, *, is_known: bool) -> None:
    """The examination that was asked for; with two passes also the one in one pass."""
    last = _as_json(found[-1], shares, is_known=is_known)
    say_json(last | ({} if len(found) == 1 else {"in_one_pass": _as_json(found[0], shares, is_known=is_known)}))


def _as_json(one: _Examination, shares: OutcomeShares | None, *, is_known: bool) -> dict[str, Any]:
    from trainer.ledger.certificates import EDITION, binding

    figures = ("name", "value", "low", "high", "limit", "at_most", "passed", "room", "samples")
    judge = {name: getattr(one.identity, name) for name in ("judge", "rubric", "rubric_version", "is_llm")}
    return judge | {
        "passes": 2 if one.identity.has_two_passes else 1,
        "certificate": one.certificate,
        "edition": EDITION,
        "calls": one.calls,
        "cost_usd": one.cost_usd if is_known else None,
        "passed": one.passed,
        "binding": [line.name for line in binding(one.lines)],
        "decisions": None if shares is None else shares.decisions,
        "sound_that_lost": None if shares is None else shares.sound_that_lost,
        "careless_that_won": None if shares is None else shares.careless_that_won,
        "lines": [{name: getattr(line, name) for name in figures} for line in one.lines],
        "unmeasured": one.unmeasured,
    }


def _print_table(
    identity: JudgeIdentity, lines: Sequence[Line], shares: OutcomeShares | None, asked: str, cost: float | None
) -> None:
    from trainer.cli.tables import Column, show_heading, show_table
    from trainer.judge.open import describe
    from trainer.ledger.certificates import binding

    how = ", in two passes" if identity.has_two_passes else ""
    show_heading(f"{identity.judge}, rubric {identity.rubric} {identity.rubric_version}{how}", sys.stdout)
    decisive = binding(lines)
    show_table(
        [
            Column("property", [line.name for line in lines]),
            Column("measured", ["n/a" if line.value is None else f"{line.value:.2f}" for line in lines]),
            Column("95 % interval", [_interval(line) for line in lines]),
            Column("limit", [f"{'≤' if line.at_most else '≥'} {line.limit:g}" for line in lines]),
            Column("result", [_result(line, binds=line in decisive) for line in lines]),
            Column("meaning", [line.meaning for line in lines]),
        ],
        sys.stdout,
    )
    if shares is not None:
        say(
            f"{counted(shares.decisions, 'simulated decision')}: by design {shares.sound_that_lost:.0%} of the sound "
            f"ones lost and {shares.careless_that_won:.0%} of the careless ones won. A line passes if its interval "
            "does."
        )
    names = ", ".join(line.name for line in decisive)
    passed = all(line.passed for line in lines)
    ruling = f"Fit to train on. Closest to its limit: {names}." if passed else f"Not fit to train on: {names}."
    paid = "cost unknown (set JUDGE_PRICE)" if cost is None else f"${cost:.2f}"
    say(f"{ruling} {asked}, {paid}.")
    if not identity.is_llm:
        say(describe(identity))


def _interval(line: Line) -> str:
    return "not measured" if line.low is None or line.high is None else f"{line.low:.2f} to {line.high:.2f}"


def _result(line: Line, *, binds: bool) -> str:
    return "FAIL" if not line.passed else "pass, closest" if binds else "pass"
