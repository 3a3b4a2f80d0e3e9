"""Is this judge with this rubric fit to train on?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from data_bridge.errors import NotEnoughData
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.data_commands import CertifySettings
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.certify.examine import Examined, Examiners
    from trainer.certify.material import Material
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


async def _work(settings: CertifySettings) -> int:
    from trainer.certify.examine import examine
    from trainer.certify.measures import lines_of
    from trainer.judge.cost import is_priced
    from trainer.judge.open import identity_of, refuse_unusable
    from trainer.ledger.certificates import keep

    judge = settings.judge.asked_in(orders=1)
    refuse_unusable(judge, settings.secrets)
    identity = identity_of(judge)
    async with database_of(settings, migrate=True) as database, AsyncExitStack() as stack:
        materials = await _materials(settings, database)
        _announce(settings, identity, materials)
        examiners = await _open(settings, identity, database, stack)
        lines: list[Line] = []
        for material in materials:
            with alive(f"examining {identity.judge}", quiet=settings.output.json_output):
                measured = lines_of(await examine(examiners, material))
            lines += [replace(line, name=f"{line.name}{material.where}") for line in measured]
        groups = " and ".join(f"{counted(len(material.groups), 'group')} ({material.name})" for material in materials)
        certificate = await keep(
            database,
            identity,
            lines,
            material=" and ".join(material.name for material in materials),
            groups=sum(len(material.groups) for material in materials),
            calls=examiners.calls,
            cost_usd=examiners.cost_usd,
        )
    passed = all(line.passed for line in lines)
    cost = examiners.cost_usd if is_priced(settings.judge) else None
    if settings.output.json_output:
        _print_json(identity, lines, certificate, passed, examiners.calls, cost)
    else:
        _print_table(identity, lines, passed, f"{groups}, {counted(examiners.calls, 'call')}", cost)
    return 0 if passed else _NOT_FIT


async def _materials(settings: CertifySettings, database: Database) -> list[Material]:
    """The simulated hours, whose agents' skill is known; with ``--own-windows`` the user's own as well."""
    from trainer.certify.material import Material, simulated

    asked = settings.examination
    planted = await simulated(asked.examined_groups, asked.group_agents, asked.seed)
    if not asked.own_windows:
        return [planted]
    own = await _own_groups(settings, database)
    if len(own) < asked.examined_groups:
        raise NotEnoughData(
            f"The windows give {counted(len(own), 'group')} and --groups is {asked.examined_groups}: "
            "lower it, or use a longer --lookback."
        )
    return [planted, Material("windows", tuple(own), {})]


async def _own_groups(settings: CertifySettings, database: Database) -> list[Group]:
    """The first ``--groups`` groups from the user's own windows."""
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
            found += form_groups(check(window, rules), settings.groups, settings.examination.seed).groups
            if len(found) >= settings.examination.examined_groups:
                break
    return found[: settings.examination.examined_groups]


def _announce(settings: CertifySettings, identity: JudgeIdentity, materials: Sequence[Material]) -> None:
    from trainer.certify.examine import calls_needed
    from trainer.judge.cost import estimate
    from trainer.judge.text import count_tokens
    from trainer.judge.view import view_of

    calls = tokens = 0
    for material in materials:
        first = view_of(material.groups[0], settings.judge.purposes)
        needed = calls_needed(len(material.groups))
        calls += needed
        tokens += needed * sum(count_tokens(body.whole) for body in first.trajectories)
    asked = settings.judge.asked_in(orders=1)
    say(f"Examining {identity.judge}: {estimate(calls, tokens, asked)}.", to=sys.stderr)


async def _open(
    settings: CertifySettings, identity: JudgeIdentity, database: Database, stack: AsyncExitStack
) -> Examiners:
    """Three views of the judge under one cost limit. ``--fresh`` ignores stored verdicts: the endpoint may differ."""
    from trainer.certify.examine import Examiners
    from trainer.judge.open import open_judge

    occasion = f" {datetime.now(UTC).isoformat()}" if settings.examination.fresh else ""
    run_id = f"certify {identity.judge} {identity.rubric_version}{occasion}"

    async def view(orders: int, purpose: str, beside: Examined | None = None) -> Examined:
        asked = settings.judge.asked_in(orders)
        opened = open_judge(asked, settings.secrets, database, run_id, purpose=purpose + occasion, beside=beside)
        return await stack.enter_async_context(opened)

    first = await view(1, "certify")
    return Examiners(first, await view(2, "certify", first), await view(1, "certify again", first))


def _print_json(
    identity: JudgeIdentity, lines: Sequence[Line], certificate: str, passed: bool, calls: int, cost: float | None
) -> None:
    shown = [
        {"name": line.name, "value": line.value, "limit": line.limit, "passed": line.passed, "samples": line.samples}
        for line in lines
    ]
    judge = {name: getattr(identity, name) for name in ("judge", "rubric", "rubric_version", "is_llm")}
    result = {"certificate": certificate, "calls": calls, "cost_usd": cost, "passed": passed, "lines": shown}
    say_json(judge | result)


def _print_table(identity: JudgeIdentity, lines: Sequence[Line], passed: bool, asked: str, cost: float | None) -> None:
    from trainer.cli.tables import Column, show_heading, show_table
    from trainer.judge.open import describe

    show_heading(f"{identity.judge}, rubric {identity.rubric} {identity.rubric_version}", sys.stdout)
    results = ["not measured" if line.value is None else "pass" if line.passed else "FAIL" for line in lines]
    show_table(
        [
            Column("property", [line.name for line in lines]),
            Column("measured", ["n/a" if line.value is None else f"{line.value:.3f}" for line in lines]),
            Column("limit", [f"{'≤' if line.at_most else '≥'} {line.limit:g}" for line in lines]),
            Column("result", results),
            Column("meaning", [line.meaning for line in lines]),
        ],
        sys.stdout,
    )
    failed = [line.name for line in lines if not line.passed]
    ruling = "Fit to train on." if passed else f"Not fit to train on: {', '.join(failed)}."
    paid = "cost unknown (set JUDGE_PRICE)" if cost is None else f"${cost:.2f}"
    say(f"{ruling} {asked}, {paid}.")
    if not identity.is_llm:
        say(describe(identity))
