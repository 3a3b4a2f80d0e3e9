"""Certification passes an honest judge and catches every planted fault by its own line."""

from __future__ import annotations

import pytest

from data_bridge.database import Database
from tests.builders_judge import AT_ONCE, judge_settings
from tests.fakes import judges_with_faults as judges
from tests.fakes.judge_server import JudgeServer, Scorer
from tests.fakes.judge_server import honest as answering
from trainer.judge.certification.attacks import ATTACKS
from trainer.judge.certification.certificates import find, keep
from trainer.judge.certification.examine import Examiners, calls_needed, examine
from trainer.judge.certification.material import simulated
from trainer.judge.certification.measures import Line, lines_of
from trainer.judge.open import open_judge

GROUPS, AGENTS = 12, 6


async def examined(scorer: Scorer) -> tuple[dict[str, Line], int]:
    """The lines of a certificate for a judge that scores so, and how often it was asked."""
    material = await simulated(GROUPS, AGENTS, seed=0)
    with JudgeServer(otherwise=answering(scorer)) as server:
        one, two = (judge_settings(server.base_url, judge_orders=orders) for orders in (1, 2))
        async with (
            open_judge(two, None, "certify", purpose="certify", retry=AT_ONCE) as both,
            open_judge(one, None, "certify", purpose="again", retry=AT_ONCE) as again,
            open_judge(one, None, "certify", purpose="certify", retry=AT_ONCE) as first,
        ):
            first.store = both.store  # as the database does for two processes
            asked = await examine(Examiners(first, both, again), material)
        return {line.name: line for line in lines_of(asked)}, len(server.requests)


async def test_an_honest_judge_passes_every_line() -> None:
    lines, calls = await examined(judges.honest)
    assert [line.name for line in lines.values() if not line.passed] == []
    assert all(line.value is not None for line in lines.values())
    assert calls == calls_needed(GROUPS)


@pytest.mark.parametrize("line", judges.FAULTS)
async def test_a_planted_fault_is_caught_by_its_own_line(line: str) -> None:
    lines, _ = await examined(judges.FAULTS[line])
    assert not lines[line].passed, lines[line]


async def test_a_judge_that_scores_at_random_finds_no_skill() -> None:
    lines, _ = await examined(judges.random_scores)
    assert not lines["skill"].passed


def test_there_are_twenty_different_attacks() -> None:
    assert len({attack.text for attack in ATTACKS}) == len({attack.name for attack in ATTACKS}) == 20


async def test_a_certificate_is_found_for_exactly_its_judge_and_rubric(database: Database) -> None:
    from trainer.judge.open import identity_of

    identity = identity_of(judge_settings())
    other = identity_of(judge_settings(judge_model="another"))
    line = Line("skill", 0.2, 0.6, False, "", 6)
    assert await find(database, identity) is None
    await keep(database, identity, [line], material="simulated", groups=4, calls=9, cost_usd=0.1)
    found = await find(database, identity)
    assert found is not None
    assert not found.passed
    assert found.lines == (line,)
    assert await find(database, other) is None
