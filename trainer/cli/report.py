"""Write the report of a run again, and open it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.cli.frame import database_of, run_command
from trainer.cli.output import say, say_json
from trainer.config.commands import ReportSettings
from trainer.progress import counted

if TYPE_CHECKING:
    from data_bridge.database import Database
    from trainer.ledger.read.types import RunFacts


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        ReportSettings,
        argv,
        prog="report.py",
        description="Writes the HTML report of a run from the ledger. RUN defaults to the model's latest run.",
    )


async def _work(settings: ReportSettings) -> int:
    from trainer.ledger.read.run_facts import gather, newest_run
    from trainer.report.page import write
    from trainer.report.verdict import headline

    async with database_of(settings, existing=True) as database:
        if settings.page.list_runs:
            return await _list(settings, database)
        run_id = settings.page.run or await newest_run(database, settings.model.model)
        facts = await gather(database, run_id)
    usual = settings.common.home / "runs" / run_id / "report.html"
    written = write(facts, settings.page.report_file or usual).resolve()
    if settings.output.json_output:
        say_json({**_figures(facts), "report": str(written)})
    else:
        say(f"{headline(facts)}.", f"Report: {written}")
    if settings.page.open_page:
        _open(written)
    return 0


def _figures(facts: RunFacts) -> dict[str, Any]:
    """The report's key figures, for machines."""
    from trainer.report.verdict import headline

    gain = facts.evaluation.score_difference if facts.evaluation is not None else None
    return {
        "run": facts.run_id,
        "state": facts.state,
        "headline": headline(facts),
        "ruling": facts.ruling,
        "reasons": list(facts.ruling_reasons),
        "gain": None if gain is None else [gain.mean, gain.low, gain.high],
        "promotion": None if facts.promotion is None else facts.promotion.state.value,
        "steps": len(facts.steps),
        "trajectories": facts.trained_trajectories,
        "exclusions": dict(facts.exclusions),
        "cost_usd": facts.cost_usd,
        "leaked_windows": list(facts.leaked_windows),
    }


async def _list(settings: ReportSettings, database: Database) -> int:
    from trainer.ledger.read.run_facts import list_runs

    runs = await list_runs(database, settings.model.model)
    if settings.output.json_output:
        listed = [
            {"run": run.run_id, "started": f"{run.started_at:%Y-%m-%dT%H:%M:%SZ}", "state": run.state}
            | {"steps": run.steps}
            for run in runs
        ]
        say_json({"runs": listed})
        return 0
    for run in runs:
        say(f"{run.run_id}  {run.started_at:%Y-%m-%d %H:%M} UTC  {run.state}, {counted(run.steps, 'step')}")
    if not runs:
        say(
            f"The model {settings.model.model!r} has no run yet in {database.label}; "
            "`python scripts/train_mmo.py` starts one."
        )
    return 0


def _open(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        say("No browser could be started here; open the file yourself.")
