"""Write the page of any run again, and open it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.cli.frame import database_of, run_command
from trainer.config import ReportSettings


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        ReportSettings,
        argv,
        prog="report.py",
        description="Writes the HTML report of a run from the ledger. RUN defaults to the model's latest run.",
    )


async def _work(settings: ReportSettings) -> int:
    import json

    from trainer.report.facts import gather, newest_run
    from trainer.report.page import headline, write

    async with database_of(settings) as database:
        if settings.list_runs:
            return await _list(settings, database.pool)
        run_id = settings.run or await newest_run(database, settings.model)
        facts = await gather(database, run_id)
    path = settings.output or settings.home / "runs" / run_id / "report.html"
    written = write(facts, path).resolve()
    if settings.json_output:
        print(json.dumps({"run": run_id, "headline": headline(facts), "report": str(written)}))
    else:
        print(f"{headline(facts)}.\nReport: {written}")
    if settings.open_page:
        _open(written)
    return 0


async def _list(settings: ReportSettings, pool: object) -> int:
    import json

    import asyncpg

    assert isinstance(pool, asyncpg.Pool)
    rows = await pool.fetch(
        "SELECT run_id, state, started_at FROM hindsight.runs WHERE model = $1 ORDER BY started_at DESC", settings.model
    )
    if settings.json_output:
        listed = [{"run": row["run_id"], "state": row["state"], "started": str(row["started_at"])} for row in rows]
        print(json.dumps({"runs": listed}))
        return 0
    for row in rows:
        print(f"{row['run_id']}  {row['started_at']:%Y-%m-%d %H:%M} UTC  {row['state']}")
    if not rows:
        print(f"The model {settings.model!r} has no run yet.")
    return 0


def _open(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        print("No browser could be started here; open the file yourself.")
