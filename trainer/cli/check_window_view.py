"""One window in full: one line per agent, the ground truth, and what would be left out and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import msgspec

from data_bridge.models import AgentTrajectory, UnreadableRow, WindowOutcomes
from data_bridge.quality import CheckedWindow, Exclusion, Rules
from data_bridge.window_ids import end_of, is_closed
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World, told_fact
from trainer.cli.output import say
from trainer.cli.tables import Column, printable, show_heading, show_table
from trainer.progress import counted


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One trajectory of the window. What could not be read is None."""

    agent_id: str
    agent_name: str | None
    trajectory_id: str
    usable: bool
    reason: str | None
    detail: str
    steps: int | None = None
    actions: int | None = None
    llm_calls: int | None = None
    pnl: float | None = None
    size_bytes: int | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowView:
    window_id: str
    hours: int
    state: str
    lines: tuple[AgentLine, ...]
    outcomes: WindowOutcomes
    world: World = MARKET

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.window_id,
            "hours": self.hours,
            "state": self.state,
            "trajectories": [asdict(line) for line in self.lines],
            "usable": sum(line.usable for line in self.lines),
            "outcomes": msgspec.to_builtins(self.outcomes),
        }


def make_view(checked: CheckedWindow, ungrouped: Iterable[Exclusion], rules: Rules) -> WindowView:
    """``ungrouped`` are the usable rows that found no peer."""
    window = checked.window
    left_out = {one.trajectory_id: one for one in (*checked.excluded, *ungrouped)}
    rows: list[AgentTrajectory | UnreadableRow] = [*window.trajectories, *window.unreadable]
    closed = is_closed(window.window_id, window.hours, rules.now)
    ending = f"ends {end_of(window.window_id, window.hours):%Y-%m-%d %H:%M} UTC"
    return WindowView(
        window.window_id,
        window.hours,
        f"{'closed' if closed else 'open'}, {ending}",
        tuple(
            _line(row, left_out.get(row.trajectory_id), checked) for row in sorted(rows, key=lambda row: row.agent_id)
        ),
        window.outcomes,
        checked.world,
    )


def _line(row: AgentTrajectory | UnreadableRow, exclusion: Exclusion | None, checked: CheckedWindow) -> AgentLine:
    reason, detail = (None, "") if exclusion is None else (exclusion.reason.value, exclusion.detail)
    if isinstance(row, UnreadableRow):
        return AgentLine(row.agent_id, None, row.trajectory_id, False, reason, detail)
    calls = row.llm_calls
    success = checked.world.success(row, checked.window.outcomes)
    known = None if success is None else success.value
    return AgentLine(
        row.agent_id,
        row.agent_name,
        row.trajectory_id,
        exclusion is None,
        reason,
        detail,
        steps=len(row.steps),
        actions=len(row.actions),
        llm_calls=len(calls),
        pnl=row.window_pnl if checked.world.reads_markets else known,
        size_bytes=row.size_bytes,
        models=tuple(sorted({call.model for call in calls if call.model})),
    )


def show_view(view: WindowView, out: TextIO) -> None:
    hours = counted(view.hours, "hour")
    show_heading(f"Window {view.window_id}, {hours}: {view.state}", out)
    show_table(_columns(view.lines, view.world.words.measure), out, good=[line.usable for line in view.lines])
    say("", to=out)
    show_heading("What really happened (the judge sees this, the agents do not)", out)
    if not view.outcomes:
        said = "market_outcomes has no rows for this window" if view.world.reads_markets else "no facts are known"
        say(said, to=out)
    for stock in view.outcomes.stocks:
        move = "move unknown" if stock.change_percent is None else f"{stock.change_percent:+.2f} %"
        say(f"{printable(stock.ticker)}: {_price(stock.start_price)} to {_price(stock.end_price)}, {move}", to=out)
        for event in stock.news:
            say(f"  news: {printable(event.headline)}", to=out)
    for market in view.outcomes.predictions:
        question = printable(market.question or market.market_id)
        say(f"{question}: {printable(market.outcome) if market.outcome else 'unresolved'}", to=out)
    for fact in view.outcomes.facts:
        say(f"{printable(fact.subject)}: {printable(told_fact(fact))}", to=out)


def _columns(lines: tuple[AgentLine, ...], measure: str) -> list[Column]:
    def numbers(heading: str, values: Iterable[int | None], rank: int = 0) -> Column:
        cells = ["" if value is None else f"{value:,}" for value in values]
        return Column(heading, cells, is_number=True, rank=rank)

    return [
        Column("agent", [printable(line.agent_name or line.agent_id, 30) for line in lines]),
        Column("trajectory", [printable(line.trajectory_id, 40) for line in lines], rank=2),
        numbers("steps", (line.steps for line in lines), rank=4),
        numbers("actions", (line.actions for line in lines), rank=1),
        numbers("calls", (line.llm_calls for line in lines), rank=3),
        numbers("bytes", (line.size_bytes for line in lines), rank=6),
        Column(measure, ["" if line.pnl is None else f"{line.pnl:+,.2f}" for line in lines], is_number=True),
        Column("model", [printable(", ".join(line.models), 40) for line in lines], rank=5),
        Column("verdict", [_verdict(line) for line in lines]),
    ]


def _verdict(line: AgentLine) -> str:
    if line.usable:
        return "usable"
    return f"{line.reason}: {printable(line.detail)}" if line.detail else str(line.reason)


def _price(price: float | None) -> str:
    return "unknown" if price is None else f"{price:,.2f}"
