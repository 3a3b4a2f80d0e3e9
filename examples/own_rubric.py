"""Judge one window with a rubric of your own, and see every score with its explanation.

    python scripts/spawn_test_agents.py              # a simulated day, if you have no log of your own yet
    export JUDGE_MODEL=gpt-5-mini JUDGE_API_KEY=...  # and JUDGE_BASE_URL for any other OpenAI-compatible endpoint
    python examples/own_rubric.py --rubric examples/own_rubric.md

The window is --window or the newest that can be trained on, the database DATABASE_URL or the embedded one. A hash of
the rubric is part of a verdict's key in the ledger: running it again pays nothing, an edited rubric is judged anew.
`certify_judge.py --rubric FILE` measures whether the judge obeys it, `train_mmo.py --rubric FILE` trains on it.
"""

import sys
from pathlib import Path

from data_bridge.errors import JudgeError, NotEnoughData
from data_bridge.quality import check
from data_bridge.reader import WindowReader
from trainer.cli.frame import database_of, run_command
from trainer.config.data_commands import ExaminationSecrets, OneWindowSettings
from trainer.config.derived import window_rules
from trainer.config.sections import DatabaseSettings, GroupingSettings, JudgeSettings, WindowSettings
from trainer.config.settings import Command, setting
from trainer.judge.open import describe, open_judge
from trainer.plan.grouping import form_groups
from trainer.types import JudgeFailure


class OwnJudge(JudgeSettings):
    """Judge."""

    judge: str = setting("llm", "`llm`, or `outcome`, which is offline and reads no rubric.")
    rubric: str = setting(str(Path(__file__).with_suffix(".md")), "Your rubric, a text file.", metavar="FILE")


class OwnRubric(Command):
    shown: OneWindowSettings
    database: DatabaseSettings
    windows: WindowSettings
    groups: GroupingSettings
    judge: OwnJudge
    secrets: ExaminationSecrets


async def work(settings: OwnRubric) -> int:
    async with (
        database_of(settings, migrate=True) as database,
        open_judge(settings.judge, settings.secrets, database, "own-rubric") as judge,
    ):
        reader = WindowReader(database, window_rules(settings.windows))
        window_id = settings.shown.window or max((ref.window_id for ref in await reader.discover()), default="")
        window = await reader.read(window_id)
        groups = form_groups(check(window, reader.rules), settings.groups, seed=0).groups if window else ()
        if not groups:
            where = f" in {window_id}" if window_id else ""
            raise NotEnoughData(f"There is nothing to judge{where}: check_windows.py says why.")
        print(f"{window_id}: {describe(judge.identity)}")
        for group in groups:
            result = await judge.judge(group)
            if isinstance(result, JudgeFailure):  # never a score
                raise JudgeError(f"The judge gave no verdict ({result.detail}): run it again, or take another judge.")
            members = zip(result.group.trajectories, result.verdicts, strict=True)
            for member, verdict in sorted(members, key=lambda pair: -pair[1].score):
                print(f"  {verdict.score:.2f} ±{verdict.uncertainty:.2f}  {member.agent_name}: {verdict.explanation}")
        print(f"{judge.usage.calls} calls, {judge.usage.from_cache} of {judge.usage.judged} groups judged before.")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(work, OwnRubric, None, prog="own_rubric.py", description=__doc__))
