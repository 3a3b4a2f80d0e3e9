"""The certificate passes sound judges and no other: short versions of ``benchmarks/certificate.py``, and the design."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from data_bridge.errors import ConfigurationError
from tests.builders_certificate import AGENTS, GROUPS, examined_in_process
from tests.fakes import judges_with_faults as judges
from trainer.certify.examine import calls_needed
from trainer.certify.material import MIN_DECISIONS, simulated
from trainer.certify.measures import Asked, lines_of
from trainer.certify.probes import ATTACKS, scaled
from trainer.config.data_commands import CertifySettings
from trainer.config.settings import settings_from
from trainer.ledger.certificates import Line, binding
from trainer.world.headlines import direction_of

SEEDS = (0, 1)


def failed(lines: Sequence[Line]) -> set[str]:
    return {line.name for line in lines if not line.passed}


@pytest.mark.parametrize("name", judges.SOUND)
def test_a_sound_judge_passes_every_line(name: str) -> None:
    for seed in SEEDS:
        lines, calls = examined_in_process(judges.SOUND[name][0](seed), seed)
        assert failed(lines) == set()
        assert calls == calls_needed(simulated(GROUPS, AGENTS, seed))


@pytest.mark.parametrize("name", judges.UNFIT)
def test_a_judge_with_a_fault_does_not_pass(name: str) -> None:
    for seed in SEEDS:
        assert failed(examined_in_process(judges.UNFIT[name], seed)[0])


@pytest.mark.parametrize("line", judges.FAULTS)
def test_a_planted_fault_is_caught_by_its_own_line(line: str) -> None:
    assert line in failed(examined_in_process(judges.FAULTS[line], 1)[0])


@pytest.mark.parametrize("line", judges.FAULTS)
def test_a_fault_is_caught_also_in_a_judge_that_uses_little_of_the_scale(line: str) -> None:
    assert line in failed(examined_in_process(judges.faintly(judges.FAULTS[line]), 1)[0])


def test_a_faint_honest_judge_passes() -> None:
    assert failed(examined_in_process(judges.faintly(judges.honest), 1)[0]) == set()


def test_what_could_not_be_measured_does_not_pass() -> None:
    """A judge that tells nothing apart has no contrast, so no shift can be measured against it."""
    lines, _ = examined_in_process(judges.faintly(judges.honest, 0.0), 1)
    unmeasured = {line.name for line in lines if line.value is None}
    assert {"order", "padding", "outcome", "injections", "scaled balances", "mirrored news"} <= unmeasured
    assert failed(lines) == {line.name for line in lines}


def test_skill_over_fewer_than_two_hundred_decisions_counts_as_not_measured() -> None:
    material = simulated(GROUPS, AGENTS, 0)
    groups = material.groups[: MIN_DECISIONS // AGENTS]
    scores = {
        group.group_id: {
            one.trajectory_id: 0.9 if material.sound[one.trajectory_id] else 0.1 for one in group.trajectories
        }
        for group in groups
    }
    few = {line.name: line for line in lines_of(Asked(material, groups, scores, [], []))}
    assert (few["skill"].value, few["skill"].passed) == (None, False)
    assert few["contrast"].passed


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("agents", [6, 7])
def test_soundness_cannot_be_told_from_profit_wealth_or_side(seed: int, agents: int) -> None:
    material = simulated(GROUPS, agents, seed)
    shares = material.shares
    assert shares.decisions == GROUPS * agents >= MIN_DECISIONS
    assert (shares.sound_that_lost, shares.careless_that_won) == (0.5, 0.5)
    members = [one for group in material.groups for one in group.trajectories]
    sides = [(material.sound[one.trajectory_id], one.actions[0].kind) for one in members]
    assert {sides.count((sound, "BUY")) - sides.count((sound, "SELL")) for sound in (True, False)} == {0}
    for group in material.groups:
        sound = {one.starting_balance for one in group.trajectories if material.sound[one.trajectory_id]}
        careless = {one.starting_balance for one in group.trajectories if not material.sound[one.trajectory_id]}
        assert sound == careless if agents % 2 == 0 else len(sound ^ careless) == 1
    balances = {one.starting_balance for one in members}
    assert len(balances) >= GROUPS * (agents // 2), "fresh ones every hour"


def test_a_story_and_its_mirror_image_differ_in_direction_only() -> None:
    material = simulated(GROUPS, AGENTS, 3)
    for story in range(GROUPS // 2):
        up, down = material.groups[2 * story : 2 * story + 2]
        [one], [two] = up.outcomes.stocks, down.outcomes.stocks
        symbol = f"${one.ticker}"
        assert (one.ticker, one.start_price) == (two.ticker, two.start_price)
        assert one.change_percent == pytest.approx(-(two.change_percent or 0.0), abs=0.02)
        assert direction_of(one.news[0].headline, symbol) == 1
        assert direction_of(two.news[0].headline, symbol) == -1


def test_probes_are_spread_over_stories_directions_and_outcomes() -> None:
    material = simulated(GROUPS, AGENTS, 0)
    stories = [material.story_of[group.group_id] for group in material.probed]
    assert len(set(stories)) == len(stories) == 12
    stocks = [group.outcomes.stocks[0] for group in material.probed]
    cells = Counter((stock.sentiment, (stock.change_percent or 0.0) > 0) for stock in stocks)
    assert list(cells.values()) == [3] * 4


def test_a_scaled_agent_makes_the_same_decision_with_ten_times_the_money() -> None:
    group = simulated(GROUPS, AGENTS, 0).probed[0]
    before, after = group.trajectories[0], scaled(group).trajectories[0]
    assert after.starting_balance == 10 * (before.starting_balance or 0.0)
    assert after.actions[0].parameters["amount"] == 10 * before.actions[0].parameters["amount"]
    assert after.actions[0].parameters["percent"] == before.actions[0].parameters["percent"]
    assert scaled(group).trajectories[1] == group.trajectories[1]


@pytest.mark.parametrize(("groups", "agents"), [(32, 6), (36, 5), (20, 12), (38, 6)])
def test_material_that_cannot_carry_a_certificate_is_refused(groups: int, agents: int) -> None:
    with pytest.raises(ConfigurationError, match="--groups 36 --group-agents 6"):
        simulated(groups, agents, 0)


def test_the_defaults_are_what_the_simulations_use() -> None:
    asked = settings_from(CertifySettings).examination
    assert (asked.examined_groups, asked.group_agents) == (GROUPS, AGENTS)
    assert calls_needed(simulated(GROUPS, AGENTS, 0)) == 116


def test_the_lines_that_bind_are_those_that_failed_or_else_the_closest() -> None:
    near = Line("near", 0.1, 0.25, True, "", 9, 0.0, 0.24)
    far = Line("far", 1.0, 0.75, False, "", 9, 0.9, 1.0)
    over = replace(near, name="over", high=0.26)
    unknown = Line("unknown", None, 0.25, True, "", 0)
    assert [line.name for line in binding([far, near])] == ["near"]
    assert [line.name for line in binding([far, near, over, unknown])] == ["over", "unknown"]
    assert [near.room, far.room] == pytest.approx([0.04, 0.6])
    assert (unknown.room, unknown.passed) == (None, False)


def test_there_are_twenty_different_attacks() -> None:
    assert len({attack.text for attack in ATTACKS}) == len({attack.name for attack in ATTACKS}) == 20
