"""calibrate_advice: how sure the promoted release must be for its proposals to be shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from trainer.cli.frame import database_of, run_command
from trainer.cli.output import alive, say, say_json
from trainer.config.commands import CalibrateSettings

_DESCRIPTION = """Ask the promoted release at decisions whose outcome is known, and fit what its confidence means.

The decisions are of windows after everything that the release was trained on; windows that the gate may still need are
left alone. The release is asked where the agents reach it (`serve.py`, or the backend's own endpoint). Run it after
each promotion; from then on the console learns from what comes of its advice."""

_EPILOG = """exit codes:
  0 done, also if advice still abstains; 2 configuration; 3 no release is promoted; 4 the release does not answer"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        work, CalibrateSettings, argv, prog="calibrate_advice.py", description=_DESCRIPTION, epilog=_EPILOG
    )


async def work(settings: CalibrateSettings) -> int:
    from trainer.advice.endpoint import opener
    from trainer.run.calibrate_advice import calibrate_release, promoted, summary

    quiet = settings.output.json_output
    async with database_of(settings, migrate=True) as database:
        promotion = await promoted(database, settings.model.model)
        open_model = opener(settings.promotion, settings.secrets)
        model = open_model(promotion, settings.advice.advice_timeout.total_seconds())
        try:
            with alive(f"calibrating {promotion.release.name}", quiet=quiet):
                found = await calibrate_release(
                    database,
                    promotion,
                    model,
                    settings.windows,
                    settings.advice,
                    points=settings.calibration.points,
                    say=_ignore if quiet else _progress,
                )
        finally:
            await model.close()
    if quiet:
        say_json(asdict(found))
    else:
        say(*summary(found, settings.advice.advice_precision))
    return 0


def _progress(line: str) -> None:
    say(line, to=sys.stderr)


def _ignore(line: str) -> None: ...
