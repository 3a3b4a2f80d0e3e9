"""judge_windows: score windows without training on them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.window_ids import normalise
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.data_commands import JudgeWindowsSettings
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from data_bridge.discovery import WindowRef
    from data_bridge.models import Window
    from data_bridge.quality import Rules
    from data_bridge.reader import WindowReader
    from trainer.judge.cost import CostEstimate
    from trainer.progress import JudgeUsage
    from trainer.run.judge_windows import WindowVerdicts
    from trainer.types import JudgedGroup, JudgeIdentity

_DESCRIPTION = """Judge windows without training on them, and show the scores.

Verdicts are stored: a second look or a later training run pays nothing for them. `--window ID` shows every agent's
score with its explanation; `--write-back` also writes them into the game's own columns."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(work, JudgeWindowsSettings, argv, prog="judge_windows.py", description=_DESCRIPTION)


async def work(settings: JudgeWindowsSettings) -> int:
    from trainer.judge.cost import is_priced

    priced, wanted = is_priced(settings.judge), settings.judging.window
    if wanted is not None and normalise(wanted) is None:
        raise ConfigurationError(f"--window: write the id as 2026-11-02T10:00, in UTC (got {wanted!r}).")
    with alive("judging windows", quiet=settings.output.json_output):
        return await _judge(settings, wanted, priced=priced)


async def _judge(settings: JudgeWindowsSettings, wanted: str | None, *, priced: bool) -> int:
    from data_bridge.reader import WindowReader
    from trainer.judge.open import describe, open_judge
    from trainer.progress import FailurePolicy
    from trainer.run.judge_windows import judge_windows

    async with (
        database_of(settings, migrate=True) as database,
        open_judge(
            settings.judge,
            settings.secrets,
            database,
            f"judge-{uuid.uuid4().hex[:12]}",
            with_steps=settings.judge.step_credit,
        ) as judge,
    ):
        say(describe(judge.identity), to=sys.stderr)
        rules = await _rules(settings, database)
        reader = WindowReader(database, rules)
        refs = await _refs(settings, reader, database)
        if judge.identity.is_llm:
            estimated = await _estimate(settings, _windows(settings, reader, refs), rules)
            say(f"Estimate: {estimated}; stored verdicts are free.", to=sys.stderr)
        shown: list[dict[str, Any]] = []
        windows = _windows(settings, reader, refs)
        verdicts = judge_windows(
            judge,
            windows,
            rules,
            settings.groups,
            seed=settings.judging.seed,
            in_flight=2 * settings.judge.judge_concurrency,
            policy=FailurePolicy(settings.judge.max_judge_failures),
        )
        async with aclosing(windows), aclosing(verdicts):
            async for window in verdicts:
                if settings.judging.write_back:
                    await _write_back(database, window)
                if settings.output.json_output:
                    shown.append(_as_json(window))
                else:
                    _print_window(window, in_full=wanted is not None)
                progress = _progress(len(refs), judge.usage, priced=priced)
                say(progress, to=sys.stderr, end="\r" if sys.stderr.isatty() else "\n")
        if settings.output.json_output:
            _print_json(judge.identity, shown, judge.usage, priced=priced)
        else:
            say("", describe(judge.identity), _summary(judge.usage, priced=priced))
    return 0


async def _rules(settings: JudgeWindowsSettings, database: Database) -> Rules:
    from trainer.config.derived import window_rules
    from trainer.ledger.clock import clock

    return window_rules(settings.windows, now=await clock(database, settings.windows.until))


async def _refs(settings: JudgeWindowsSettings, reader: WindowReader, database: Database) -> list[WindowRef]:
    """The windows for training, or with --held-out those that are kept for the next ruling."""
    from trainer.ledger.evaluations import first_consulted
    from trainer.statistics.hold_out import OneHour, hold_out

    if settings.judging.window is not None:
        return []
    refs = await reader.discover()
    hours = [OneHour(ref.window_id) for ref in refs]
    kept = set(hold_out(hours, await first_consulted(database.pool), settings.windows).evaluation)
    refs = [ref for ref in refs if (ref.window_id in kept) == settings.judging.held_out]
    if not refs:
        raise NotEnoughData(
            "There is no window to judge: use a longer --lookback, or run `check_windows.py` to see why."
        )
    return refs


async def _windows(
    settings: JudgeWindowsSettings, reader: WindowReader, refs: Sequence[WindowRef]
) -> AsyncGenerator[Window, None]:
    from trainer.run.judge_windows import as_unused

    wanted = settings.judging.window
    if wanted is not None:
        window = await reader.read(wanted)
        if window is None:
            raise NotEnoughData(f"There is no window {wanted}: `check_windows.py` lists the windows.")
        yield as_unused(window)
        return
    async with aclosing(reader.stream(refs)) as windows:
        async for window in windows:
            yield window


async def _estimate(
    settings: JudgeWindowsSettings, windows: AsyncGenerator[Window, None], rules: Rules
) -> CostEstimate:
    """Estimate the cost of judging ``windows`` from a first look at them, before anything is paid for."""
    from data_bridge.quality import check
    from data_bridge.survey import summarise
    from trainer.judge.cost import estimate
    from trainer.plan.grouping import partition

    groups = judge_tokens = decisions = 0
    async with aclosing(windows):
        async for window in windows:
            formed = partition(summarise(check(window, rules)).usable, settings.groups, settings.judging.seed).groups
            groups += len(formed)
            judge_tokens += sum(member.judge_tokens for group in formed for member in group)
            decisions += sum(member.decisions for group in formed for member in group)
    scored = decisions if settings.judge.step_credit else 0
    return estimate(groups, judge_tokens, settings.judge, scored_decisions=scored)


async def _write_back(database: Database, window: WindowVerdicts) -> None:
    """Write all groups of a window or none: a reader never sees a half-ranked window."""
    from data_bridge.game_writes import write_verdicts
    from trainer.ledger.batches import game_verdicts

    async with database.pool.acquire() as connection, connection.transaction():
        for judged in window.judged:
            group = game_verdicts(judged.group.group_id, judged.verdicts, judged.identity, judged.verdict_key)
            await write_verdicts(connection, group)


def _progress(windows: int, usage: JudgeUsage, *, priced: bool) -> str:
    judged = counted(usage.judged, "group") + (f" of {counted(windows, 'window')}" if windows else "")
    return f"judged {judged}, {counted(usage.calls, 'call')}, {_cost(usage, priced=priced)}"


def _cost(usage: JudgeUsage, *, priced: bool) -> str:
    return f"${usage.cost_usd:.4f}" if priced else "cost unknown (set JUDGE_PRICE)"


def _print_window(window: WindowVerdicts, *, in_full: bool) -> None:
    scores = sorted((verdict.score for judged in window.judged for verdict in judged.verdicts), reverse=True)
    shown = f"{counted(len(scores), 'score')} from {scores[-1]:.2f} to {scores[0]:.2f}" if scores else "no scores"
    say(f"{window.window_id}  {shown}{_left_out(window)}")
    for failure in window.failed:
        say(f"  group {failure.group.group_id}: {failure.reason}, {failure.detail}")
    if in_full:
        for judged in window.judged:
            _print_group(judged)


def _print_group(judged: JudgedGroup) -> None:
    from trainer.judge.text import clean

    say(f"  group {judged.group.group_id}")
    pairs = zip(judged.group.trajectories, judged.verdicts, strict=True)
    for agent, verdict in sorted(pairs, key=lambda pair: -pair[1].score):
        pnl = f"{agent.window_pnl:+.2f}" if agent.window_pnl is not None else "unknown"
        name = clean(agent.agent_name or agent.agent_id)
        say(f"    {verdict.score:.2f} ±{verdict.uncertainty:.2f}  {name}  P&L {pnl}")
        for line in verdict.explanation.splitlines():
            say(f"        {line}")


def _left_out(window: WindowVerdicts) -> str:
    reasons = ", ".join(f"{number} {reason}" for reason, number in window.left_out.most_common())
    return f"; left out: {reasons}" if reasons else ""


def _summary(usage: JudgeUsage, *, priced: bool) -> str:
    failed = ", ".join(f"{number} {reason}" for reason, number in usage.failed.most_common()) or "none"
    cut = f", {usage.characters_cut:,} characters of observations left out" if usage.characters_cut else ""
    cached = f" ({usage.cached_tokens:,} of them from the provider's cache)" if usage.cached_tokens else ""
    unasked = ", ".join(f"{number} {reason}" for reason, number in usage.unasked.most_common())
    orders = f", further orders not asked for: {unasked}" if unasked else ""
    tokens = usage.prompt_tokens + usage.completion_tokens
    return (
        f"{counted(usage.judged, 'group')} judged ({usage.from_cache} from earlier verdicts), failed: {failed}; "
        f"{counted(usage.calls, 'call')}, {counted(tokens, 'token')}{cached}, {_cost(usage, priced=priced)}"
        f"{orders}{cut}."
    )


def _as_json(window: WindowVerdicts) -> dict[str, Any]:
    return {
        "window": window.window_id,
        "left_out": dict(window.left_out),
        "groups": [
            {
                "group": judged.group.group_id,
                "verdict_key": judged.verdict_key,
                "verdicts": [
                    {
                        "trajectory": verdict.trajectory_id,
                        "agent": trajectory.agent_id,
                        "score": verdict.score,
                        "uncertainty": verdict.uncertainty,
                        "profit_in_window": trajectory.window_pnl,
                        "explanation": verdict.explanation,
                    }
                    for trajectory, verdict in zip(judged.group.trajectories, judged.verdicts, strict=True)
                ],
            }
            for judged in sorted(window.judged, key=lambda judged: judged.group.group_id)
        ],
        "failed": [
            {"group": failure.group.group_id, "reason": failure.reason, "detail": failure.detail}
            for failure in window.failed
        ],
    }


def _print_json(identity: JudgeIdentity, windows: list[dict[str, Any]], usage: JudgeUsage, *, priced: bool) -> None:
    from dataclasses import asdict

    from trainer.judge.open import describe

    result = {
        "judge": asdict(identity) | {"sentence": describe(identity)},
        "windows": sorted(windows, key=lambda window: str(window["window"])),
        "usage": asdict(usage) | ({} if priced else {"cost_usd": None}),
    }
    say_json(result)
