"""judge_windows: score windows without training on them."""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.quality import Reason
from data_bridge.window_ids import normalise
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import Each, alive, say, say_json
from trainer.config.data_commands import JudgeWindowsSettings
from trainer.progress import Progress, counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from data_bridge.discovery import WindowRef
    from data_bridge.models import Window
    from data_bridge.quality import Rules
    from data_bridge.reader import WindowReader
    from data_bridge.worlds.world import World
    from trainer.judge.cost import CostEstimate
    from trainer.ledger.units import GroupResult
    from trainer.progress import JudgeUsage
    from trainer.run.judge_windows import WindowVerdicts
    from trainer.types import JudgeIdentity

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
    from trainer.judge.open import describe, identity_of

    identity = identity_of(settings.judge, with_steps=settings.judge.step_credit)
    shown: dict[str, WindowVerdicts] = {}
    judging = _elsewhere if settings.workers.workers or settings.workers.ray_address else _in_process
    say(describe(identity), to=sys.stderr)
    progress = Progress()
    async with database_of(settings, migrate=True) as database, _unless_gone(database, progress):
        rules = await _rules(settings, database)
        reader = _reader(database, rules)
        refs = await _refs(settings, reader, database)
        usage, left_out = _usage(), Counter[Reason]()
        async with aclosing(judging(settings, database, reader, refs, usage, progress)) as verdicts:
            async for window in verdicts:
                left_out += window.left_out
                if settings.judging.write_back:
                    await _write_back(database, window)
                if settings.output.json_output:
                    shown[window.window_id] = window
                else:
                    _print_window(window, rules.world, in_full=wanted is not None)
                told = _progress(len(refs), usage[0], priced=priced)
                say(told, to=sys.stderr, end="\r" if sys.stderr.isatty() else "\n")
    if settings.output.json_output:
        _print_json(identity, shown, rules.world, usage[0], priced=priced)
    else:
        say("", describe(identity), _summary(usage[0], priced=priced))
    if not usage[0].judged:
        why = ", ".join(f"{number} {reason}" for reason, number in (left_out + usage[0].failed).most_common())
        raise NotEnoughData(f"Nothing could be judged ({why or 'no rows'}): `check_windows.py` says what to do.")
    return 0


def _reader(database: Database, rules: Rules) -> WindowReader:
    from data_bridge.reader import WindowReader

    return WindowReader(database, rules)


def _unless_gone(database: Database, progress: Progress) -> AbstractAsyncContextManager[None]:
    from trainer.run.gone import unless_gone

    return unless_gone(database, "judge_windows.py", progress)


def _usage() -> list[JudgeUsage]:
    """A place for what judging costs, which the judge or the workers keep up to date."""
    from trainer.progress import JudgeUsage

    return [JudgeUsage()]


async def _in_process(
    settings: JudgeWindowsSettings,
    database: Database,
    reader: WindowReader,
    refs: Sequence[WindowRef],
    usage: list[JudgeUsage],
    progress: Progress,
) -> AsyncGenerator[WindowVerdicts, None]:
    from trainer.judge.open import measured_by, open_judge
    from trainer.progress import FailurePolicy
    from trainer.run.judge_windows import judge_windows

    run_id, steps = f"judge-{uuid.uuid4().hex[:12]}", settings.judge.step_credit
    async with open_judge(settings.judge, settings.secrets, database, run_id, with_steps=steps) as judge:
        usage[0] = judge.usage
        if judge.identity.is_llm:
            _say_estimate(await _estimate(settings, _windows(settings, reader, refs, progress), reader.rules))
        windows = _windows(settings, reader, refs, progress)
        verdicts = judge_windows(
            judge,
            windows,
            {ref.window_id: ref for ref in refs},
            reader,
            settings.groups,
            seed=settings.judging.seed,
            in_flight=2 * settings.judge.judge_concurrency,
            policy=FailurePolicy(settings.judge.max_judge_failures),
            progress=progress,
            is_measured=measured_by(settings.judge),
        )
        async with aclosing(windows), aclosing(verdicts):
            async for window in verdicts:
                yield window


async def _elsewhere(
    settings: JudgeWindowsSettings,
    database: Database,
    reader: WindowReader,
    refs: Sequence[WindowRef],
    usage: list[JudgeUsage],
    progress: Progress,
) -> AsyncGenerator[WindowVerdicts, None]:
    """By workers: all windows are planned first, into the ledger, and the cost is estimated from the plan."""
    from trainer.judge.cost import estimate, uses_llm
    from trainer.judge.open import known_noise, measured_by, refuse_unusable
    from trainer.progress import FailurePolicy
    from trainer.run.judge_windows import hand_out, judged_elsewhere
    from trainer.workers.elsewhere import open_workers
    from trainer.workers.sections import section_of

    refuse_unusable(settings.judge, settings.secrets)
    run_id, steps = f"judge-{uuid.uuid4().hex[:12]}", settings.judge.step_credit
    section = section_of(
        settings.judge,
        reader.rules,
        world=settings.windows.world,
        with_steps=steps,
        noise=await known_noise(settings.judge, database, run_id, with_steps=steps),
        is_unused=settings.judging.window is not None,
        gone_after=database.gone_after,
    )
    async with open_workers(
        settings.workers, section, database, settings.secrets, run_id=run_id, home=settings.common.home
    ) as workers:
        usage[0] = workers.usage
        async with aclosing(_windows(settings, reader, refs, progress)) as windows:
            by_id = {ref.window_id: ref for ref in refs}
            planned = await hand_out(
                workers,
                windows,
                by_id,
                reader.rules,
                settings.groups,
                seed=settings.judging.seed,
                is_measured=measured_by(settings.judge),
            )
        if uses_llm(settings.judge):
            scored = planned.decisions if steps else 0
            _say_estimate(estimate(planned.groups, planned.judge_tokens, settings.judge, scored_decisions=scored))
        workers.start()
        policy = FailurePolicy(settings.judge.max_judge_failures)
        async with aclosing(judged_elsewhere(workers, planned, policy, progress)) as verdicts:
            async for window in verdicts:
                yield window


def _say_estimate(estimated: CostEstimate) -> None:
    say(f"Estimate: {estimated}; stored verdicts are free.", to=sys.stderr)


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
    settings: JudgeWindowsSettings, reader: WindowReader, refs: Sequence[WindowRef], progress: Progress
) -> AsyncGenerator[tuple[Window, bool], None]:
    """The windows to judge, large ones in parts; True with the last part of a window."""
    from trainer.workers.judging import as_unused

    wanted = settings.judging.window
    if progress.stage != "judging":
        progress.doing("reading", f"window {wanted or refs[0].window_id}")
    if wanted is not None:
        window = await reader.read(wanted)
        if window is None:
            raise NotEnoughData(f"There is no window {wanted}: `check_windows.py` lists the windows.")
        yield as_unused(window), True
        return
    async with aclosing(reader.stream_parts(refs)) as parts:
        async for part in parts:
            if progress.stage != "judging":
                progress.doing("reading", f"on after window {part[0].window_id}")
            yield part


async def _estimate(
    settings: JudgeWindowsSettings, windows: AsyncGenerator[tuple[Window, bool], None], rules: Rules
) -> CostEstimate:
    """Estimate the cost of judging ``windows`` from a first look at them, before anything is paid for."""
    from data_bridge.window_parts import summaries
    from trainer.judge.cost import estimate
    from trainer.plan.grouping import partition

    groups = judge_tokens = decisions = 0
    async with aclosing(windows):
        async for summary, _ in summaries(windows, rules):
            formed = partition(summary.usable, settings.groups, settings.judging.seed, rules.world).groups
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
            assert judged.identity is not None, "it was judged"
            group = game_verdicts(judged.group_id, judged.verdicts, judged.identity, judged.verdict_key)
            await write_verdicts(connection, group)


def _progress(windows: int, usage: JudgeUsage, *, priced: bool) -> str:
    judged = counted(usage.judged, "group") + (f" of {counted(windows, 'window')}" if windows else "")
    return f"judged {judged}, {counted(usage.calls, 'call')}, {_cost(usage, priced=priced)}"


def _cost(usage: JudgeUsage, *, priced: bool) -> str:
    return f"${usage.cost_usd:.4f}" if priced else "cost unknown (set JUDGE_PRICE)"


def _print_window(window: WindowVerdicts, world: World, *, in_full: bool) -> None:
    number, lowest, highest = 0, inf, -inf
    for judged in window.judged:
        scores = [verdict.score for verdict in judged.verdicts]
        number, lowest, highest = number + len(scores), min([lowest, *scores]), max([highest, *scores])
    shown = f"{counted(number, 'score')} from {lowest:.2f} to {highest:.2f}" if number else "no scores"
    say(f"{window.window_id}  {shown}{_left_out(window)}")
    for failure in window.failed:
        say(f"  group {failure.group_id}: {failure.reason}, {failure.detail}")
    if in_full:
        for judged in window.judged:
            _print_group(judged, world.words.measure)


def _print_group(judged: GroupResult, measure: str) -> None:
    from trainer.judge.text import clean

    say(f"  group {judged.group_id}")
    pairs = zip(judged.members, judged.verdicts, strict=True)
    for agent, verdict in sorted(pairs, key=lambda pair: -pair[1].score):
        told = "unknown" if agent.made is None else f"{agent.made:+.2f}"
        name = clean(agent.agent_name or agent.agent_id)
        say(f"    {verdict.score:.2f} ±{verdict.uncertainty:.2f}  {name}  {measure} {told}")
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


def _as_json(window: WindowVerdicts, world: World) -> dict[str, Any]:
    return {
        "window": window.window_id,
        "left_out": dict(window.left_out),
        "groups": Each(_group_json(judged, world) for judged in window.judged.sorted(lambda one: one.group_id)),
        "failed": Each({"group": one.group_id, "reason": one.reason, "detail": one.detail} for one in window.failed),
    }


def _group_json(judged: GroupResult, world: World) -> dict[str, Any]:
    return {
        "group": judged.group_id,
        "verdict_key": judged.verdict_key,
        "verdicts": [
            {
                "trajectory": verdict.trajectory_id,
                "agent": member.agent_id,
                "score": verdict.score,
                "uncertainty": verdict.uncertainty,
                ("profit_in_window" if world.reads_markets else "success"): member.made,
                "explanation": verdict.explanation,
            }
            for member, verdict in zip(judged.members, judged.verdicts, strict=True)
        ],
    }


def _print_json(
    identity: JudgeIdentity, windows: Mapping[str, WindowVerdicts], world: World, usage: JudgeUsage, *, priced: bool
) -> None:
    """One line, as it is made: the verdicts of a very large window are not in memory."""
    from trainer.judge.open import describe

    result = {
        "judge": msgspec.to_builtins(identity) | {"sentence": describe(identity)},
        "windows": Each(_as_json(window, world) for _, window in sorted(windows.items())),
        "usage": msgspec.to_builtins(usage) | ({} if priced else {"cost_usd": None}),
    }
    say_json(result)
