"""The market's own behaviour, to the byte: what a seeded database with dirty rows gives, as it was before worlds.

The digests were taken from the code that knew nothing but markets. A change here means that verdicts that were paid for
are asked again, or that other batches are trained: it needs a reason in the changelog.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path

from data_bridge.database import Database
from data_bridge.models import DECISIONS
from data_bridge.quality import Rules, check, leave_out_unmeasured
from data_bridge.reader import WindowReader
from data_bridge.survey import survey
from data_bridge.survey_types import UsableTrajectory, WindowSummary
from data_bridge.window_ids import end_of, windows_from
from trainer.config.sections import GroupingSettings, JudgePriceSettings, PlanSettings
from trainer.judge.open import measured_by
from trainer.judge.outcome import IDENTITY, OutcomeJudge
from trainer.judge.prompt import fit, load_rubric, orders
from trainer.judge.view import view_of
from trainer.plan.grouping import form_groups
from trainer.plan.plan import make_plan
from trainer.train.credit import history_of
from trainer.types import Group, JudgedGroup
from trainer.world.agents import scripted_cast
from trainer.world.dirt import soil
from trainer.world.market import Market
from trainer.world.play import play_windows

WINDOWS = windows_from("2026-03-02T00:00", 8)
NOW = end_of(WINDOWS[-1], 1) + timedelta(hours=1)
RULES = Rules(now=NOW, min_agents=3)

GOLDEN = {
    "survey": "f7d6faf4807b8fb160467c3f",
    "plan": "d9aed6d50a8ca765656ee039",
    "groups": "b2c71cddf692855cb91a668a",
    "keys": "f13e11f3895a9b00e642d233",
    "prompts": "72b171ae1a9116c75b86d03b",
    "verdicts": "bb40950f84f66fe7ceac668b",
    "credit": "f969a9c7b8faf67b909413ca",
}


def digest(lines: list[str]) -> str:
    assert lines
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def lines_of(window: WindowSummary) -> list[str]:
    """A window in numbers, by the fields that there were then."""
    known, used = ("stocks_known", "stocks", "predictions_known", "predictions"), UsableTrajectory.__slots__[:9]
    rows = [[getattr(one, name) for name in used] for one in window.usable]
    lines = [window.window_id, window.hours, window.actions, window.pnl_range, *rows, *window.excluded]
    return [repr(line) for line in [*lines, [getattr(window.outcomes, name) for name in known]]]


def prompts_of(group: Group) -> list[str]:
    """All that a judge is sent: in one pass, in two, and decision by decision."""
    rubric, said = load_rubric("trading"), list[str]()
    for passes, numbered in ((1, False), (2, False), (1, True)):
        view = view_of(group, DECISIONS, passes, numbered=numbered)
        for one in (view, view.blind):
            if one is not None:
                fitted = fit(one, rubric, 6_000, with_steps=numbered)
                asked = fitted.prompt(orders(len(group.trajectories), 1, "golden")[0], b"golden")
                said += [asked.system, asked.user, asked.prompt_hash, one.key(IDENTITY)]
    return said


async def found(database: Database) -> dict[str, str]:
    measured = measured_by(JudgePriceSettings())
    reader = WindowReader(database, RULES)
    surveyed = await survey(reader, RULES, is_measured=measured, with_gains=True)
    plan = make_plan(surveyed.windows, PlanSettings(dropout=0.2), seed=3)
    checked = [check(one, RULES) async for one in reader.stream(await reader.discover(everything=True))]
    for one in checked:
        assert measured is not None
        left = leave_out_unmeasured(one, RULES, measured)
        assert len(left.usable) <= len(one.usable)
    formed = [form_groups(one, GroupingSettings(grouping="matched", max_group=4), seed=3) for one in checked]
    groups = [group for one in formed for group in one.groups]
    judged = [await OutcomeJudge().judge(group) for group in groups]
    done = [one for one in judged if isinstance(one, JudgedGroup)]
    return {
        "survey": digest([line for one in surveyed.windows for line in lines_of(one)]),
        "plan": digest([repr(plan)]),
        "groups": digest(
            [repr([(g.group_id, [m.trajectory_id for m in g.trajectories]) for g in one.groups]) for one in formed]
            + [repr(exclusion) for one in formed for exclusion in one.excluded]
        ),
        "keys": digest([view_of(group).key(IDENTITY) for group in groups]),
        "prompts": digest([text for group in groups for text in prompts_of(group)]),
        "verdicts": digest([repr((one.verdicts, one.verdict_key, one.left_out)) for one in done]),
        "credit": digest([repr(one) for one in history_of(done)]),
    }


async def test_a_market_gives_the_same_keys_prompts_groups_and_exclusions_as_before(
    database: Database, tmp_path: Path
) -> None:
    market = Market(7, luck=0.2, stage="several", decisions=3)
    await play_windows(database, tmp_path, market, scripted_cast(6, market.seed), WINDOWS, write_together=4)
    faults = await soil(database, WINDOWS, 0.25, seed=3)
    assert sum(faults.values()) > 8
    assert await found(database) == GOLDEN
