"""spawn_test_agents: agents play a simulated world and are logged to the database like the game's own."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from data_bridge.errors import ConfigurationError
from data_bridge.window_ids import is_closed, last_closed_windows, normalise, start_of, window_of, windows_from
from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.data_commands import SpawnSettings
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.world.agents import Agent
    from trainer.world.lessons import AgentLessons
    from trainer.world.play import Tally
    from trainer.world.player import PlayedHour
    from trainer.world.rules import SimulatedWorld

_LOOKAHEAD = 7
"""Windows whose first decisions are requested from the model in advance: with 8 agents, 64 concurrent requests."""
_WRITE_TOGETHER = 12
_WHOLE_DAYS_WITHIN_A_WEEK = 6 * 24


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        spawn,
        SpawnSettings,
        argv,
        prog="spawn_test_agents.py",
        description="Let agents of known skill play a simulated world, into the database that the trainer reads.",
    )


async def spawn(settings: SpawnSettings) -> int:
    """Play the windows, add faults if requested, and print the results."""
    from trainer.world.worlds import rules_named

    windows = windows_to_play(settings, datetime.now(UTC))
    said = settings.market
    world = rules_named(settings.play.world).world(settings.play.seed, said.luck, said.stage, said.decisions)
    with alive("playing windows", quiet=settings.output.json_output):
        return await _spawn(settings, windows, world)


async def _spawn(settings: SpawnSettings, windows: Sequence[str], world: SimulatedWorld) -> int:
    from trainer.ledger.simulation import unplayed
    from trainer.world.agents import Exploration
    from trainer.world.dirt import soil
    from trainer.world.play import play_windows
    from trainer.world.worlds import rules_of, settings_of

    async with (
        _own_database(settings) as database,
        _cast(settings) as cast,
        _lessons(settings, database) as lessons,
    ):
        started = time.monotonic()
        fresh = await unplayed(database, dict.fromkeys(windows, settings_of(world)), rules_of(world).edition)
        with _progress(len(windows), quiet=settings.output.json_output) as advance:
            tally = await play_windows(
                database,
                settings.common.home / "spool",
                world,
                cast,
                windows,
                exploration=Exploration(how=settings.market.explore),
                lookahead=0 if settings.play.policy == "scripted" else _LOOKAHEAD,
                write_together=_WRITE_TOGETHER if settings.play.policy == "scripted" else 1,
                on_window=advance,
                lessons=lessons,
            )
        seconds = time.monotonic() - started
        # Windows that were already played are left alone here too: they may already have faults.
        faults = Counter[str]()
        if settings.play.dirty:
            faults = await soil(database, fresh, settings.play.dirty, settings.play.seed)
        report = _report(settings, windows, tally, faults, seconds, database.label)
    if settings.output.json_output:
        say_json(report)
    else:
        _print_summary(report)
    return 0


@asynccontextmanager
async def _own_database(settings: SpawnSettings) -> AsyncIterator[Database]:
    """The migrated database. A live game's is refused before that, so that not even a table is created in it."""
    from data_bridge.migrate import apply
    from trainer.world.play import refuse_a_live_game

    async with database_of(settings) as database:
        await refuse_a_live_game(database)
        await apply(database.pool)
        yield database


def windows_to_play(settings: SpawnSettings, now: datetime) -> tuple[str, ...]:
    """The windows that the flags select; ConfigurationError if one of them has not ended.

    Without --start, whole days that end with yesterday, so that the same call a little later selects the same hours.
    """
    if settings.play.start is None:
        if settings.play.until_now or settings.play.count > _WHOLE_DAYS_WITHIN_A_WEEK:
            return last_closed_windows(settings.play.count, now)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return windows_from(window_of(midnight - timedelta(days=-(-settings.play.count // 24))), settings.play.count)
    start = normalise(settings.play.start)
    if start is None:
        raise ConfigurationError(f"--start: {settings.play.start!r} is not a window id: write YYYY-MM-DDTHH:00.")
    count = settings.play.count
    if settings.play.until_now:
        newest = last_closed_windows(1, now)[0]
        count = int((start_of(newest) - start_of(start)) / timedelta(hours=1)) + 1
        if count < 1:
            raise ConfigurationError(f"--start: {start} is after the newest closed hour ({newest}).")
    windows = windows_from(start, count)
    if not is_closed(windows[-1], 1, now):
        raise ConfigurationError(f"--start: window {windows[-1]} has not ended: start earlier, or play fewer.")
    return windows


@asynccontextmanager
async def _cast(settings: SpawnSettings) -> AsyncIterator[tuple[Agent, ...]]:
    """The agents, with their policy open for as long as they play."""
    from trainer.world.agents import ChatPolicy, model_cast, scripted_cast
    from trainer.world.worlds import rules_named

    agents, seed, policy = settings.market.agents, settings.play.seed, settings.play.policy
    rules = rules_named(settings.play.world)
    if policy == "scripted":
        yield scripted_cast(agents, seed, rules)
    elif policy == "embedded":
        from trainer.inference.base_model import model_directory
        from trainer.inference.chat_models import Engine

        if not settings.output.json_output:
            say("loading the model; the first time on a machine it is converted, which takes a minute", to=sys.stderr)
        directory = model_directory(settings.model.base_model, settings.common.home)
        engine = Engine(directory, threads=settings.model.threads)
        try:
            base = engine.model(None, f"{settings.model.model}@step0")
            yield model_cast(agents, seed, ChatPolicy(base, settings.market.temperature), rules)
        finally:
            await engine.close()
    elif policy.startswith(("http://", "https://")):
        from trainer.inference.chat_models import EndpointModel

        secret = settings.secrets.policy_api_key
        key = secret.get_secret_value() if secret is not None else "none"
        name, away = settings.play.policy_model or settings.model.model, settings.database.gone_after
        endpoint = EndpointModel(policy, name, key, gone_after=away)
        try:
            yield model_cast(agents, seed, ChatPolicy(endpoint, settings.market.temperature), rules)
        finally:
            await endpoint.close()
    else:
        raise ConfigurationError(
            f"--policy: {policy!r} is neither scripted, nor embedded, nor the http(s) URL of an endpoint."
        )


@asynccontextmanager
async def _lessons(settings: SpawnSettings, database: Database) -> AsyncIterator[AgentLessons | None]:
    """What the agents look up with ``--lessons``. Scripts read no prompt."""
    from data_bridge.lesson_prompts import policy_named
    from trainer.lessons.open import open_lessons
    from trainer.world.lessons import AgentLessons

    policy = policy_named(settings.lessons.lessons or "")
    if policy is None:
        yield None
        return
    if settings.play.policy == "scripted":
        raise ConfigurationError("--lessons: scripted agents read no prompt; play with --policy embedded or a URL.")
    async with open_lessons(database, settings.embedding, settings.secrets) as recall:
        yield AgentLessons(recall, settings.lessons.game, policy)


@contextmanager
def _progress(windows: int, *, quiet: bool) -> Iterator[Callable[[PlayedHour], None]]:
    """A bar on a terminal, otherwise ten lines of progress; always on stderr."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TextColumn("windows"))
        with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task("playing", total=windows)
            yield lambda _: bar.advance(task)
    else:
        done = 0

        def line(played: PlayedHour) -> None:
            nonlocal done
            done += 1
            if done * 10 // windows > (done - 1) * 10 // windows:
                say(f"played {done} of {counted(windows, 'window')} ({played.hour.window_id})", to=sys.stderr)

        yield line


def _report(
    settings: SpawnSettings, windows: Sequence[str], tally: Tally, faults: Counter[str], seconds: float, database: str
) -> dict[str, Any]:
    return {
        "database": database,
        "world": settings.play.world,
        "policy": settings.play.policy,
        "seed": settings.play.seed,
        "luck": settings.market.luck,
        "first_window": windows[0],
        "last_window": windows[-1],
        "windows_played": tally.windows,
        "windows_already_there": len(windows) - tally.windows,
        "trajectories": tally.trajectories,
        "valid_actions": round(tally.valid_share, 4),
        "trajectories_per_second": round(tally.trajectories / seconds, 1) if seconds > 0 else 0.0,
        "faults": dict(sorted(faults.items())),
        "agents": [
            {
                "agent_id": agent_id,
                "name": line.name,
                "role": line.role,
                "windows": line.windows,
                "pnl": line.pnl,
                "win_rate": round(line.win_rate, 4),
                "error_rate": round(line.error_rate, 4),
                "blocked": line.blocked,
            }
            for agent_id, line in tally.agents.items()
        ],
    }


def _print_summary(report: dict[str, Any]) -> None:
    from trainer.cli.tables import Column, show_heading, show_table
    from trainer.world.worlds import rules_named

    agents = sorted(report["agents"], key=lambda line: -line["pnl"])
    earned = rules_named(report["world"]).measure
    if agents:
        show_heading(f"{report['first_window']} to {report['last_window']}, luck {report['luck']}", sys.stdout)
        show_table(
            [
                Column("agent", [line["name"] for line in agents]),
                Column("role", [line["role"] for line in agents]),
                Column("windows", [str(line["windows"]) for line in agents], is_number=True),
                Column(earned, [f"{line['pnl']:+,.2f}" for line in agents], is_number=True),
                Column("win rate", [f"{line['win_rate']:.0%}" for line in agents], is_number=True),
                Column("error rate", [f"{line['error_rate']:.0%}" for line in agents], is_number=True),
            ],
            sys.stdout,
        )
    if report["windows_already_there"]:
        say(f"Left alone: {counted(report['windows_already_there'], 'window')} played before.")
    windows = counted(report["windows_played"], "window")
    what = f"{counted(report['trajectories'], 'trajectory')} in {windows} of {report['database']}"
    if report["trajectories"]:
        what += f"; valid actions {report['valid_actions']:.1%}; {report['trajectories_per_second']:.1f} trajectories/s"
    say(f"{what}.")
    if report["faults"]:
        say("Faults added: " + ", ".join(f"{count} {name}" for name, count in report["faults"].items()))
