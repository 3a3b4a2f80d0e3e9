"""*Now* in a terminal: the same facts, by rich; or as JSON for machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from data_bridge.database import Database
from data_bridge.redaction import one_line
from trainer.console.shown import NOTHING, dollars, duration, number, percent
from trainer.console.training_api import TrainingStatus, status_of
from trainer.ledger.events import newest_event
from trainer.ledger.read.now import NowFacts, StepPoint, now_of

if TYPE_CHECKING:
    from rich.table import Table

_EVERY = 1.0
_BARS = "▁▂▃▄▅▆▇█"


async def current(database: Database, model: str) -> tuple[NowFacts, TrainingStatus]:
    facts = await now_of(database, model)
    return facts, status_of(facts, await newest_event(database))


async def watch(database: Database, model: str, show: Callable[[Table], None]) -> None:
    """Show what happens, once a second, until cancelled."""
    while True:
        show(table_of(*await current(database, model)))
        await asyncio.sleep(_EVERY)


async def watch_as_json(database: Database, model: str, say: Callable[[object], None]) -> None:
    """A line whenever something has changed, until cancelled."""
    told: dict[str, object] = {}
    while True:
        _, status = await current(database, model)
        said = asdict(status) | {"at": None, "position": None}
        if said != told:
            told = said
            say(asdict(status))
        await asyncio.sleep(_EVERY)


def sparkline(steps: tuple[StepPoint, ...], width: int = 40) -> str:
    """The reward of the newest steps in one line."""
    values = [one.reward for one in steps[-width:] if one.reward is not None]
    if not values:
        return NOTHING
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def table_of(facts: NowFacts, status: TrainingStatus) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table(title=f"{facts.model}: {status.state}", show_header=False, title_justify="left")
    ceiling = "" if status.max_cost is None else f" of {dollars(status.max_cost)}"
    rows = {
        "run": f"{status.run_id or NOTHING} ({status.run_state or 'none yet'})",
        "stage": f"{status.stage or NOTHING} {status.unit or ''}",
        "step": NOTHING if status.step is None else str(status.step),
        "reward": f"{number(status.reward)} ± {number(status.reward_std)}  {sparkline(facts.steps)}",
        "KL, entropy": f"{number(status.kl, 4)}, {number(status.entropy)}",
        "tokens per second": number(status.tokens_per_second, 0),
        "judge": f"{status.judge_calls:,} calls, {dollars(status.cost)}{ceiling}",
        "time left": duration(status.eta),
        "host": status.host or NOTHING,
        "agents use": status.serving or "the base model",
    }
    if status.error and status.state == "idle":
        rows["error"] = status.error
    for name, value in rows.items():
        table.add_row(name, one_line(value))
    if status.state == "training":
        table.add_row("done", ProgressBar(total=1.0, completed=status.share or 0.0, width=40))
        table.add_row("", percent(status.share))
    return table
