"""Every trained advantage can be computed again from the ledger, bit for bit, also after a resume."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import BackendError, Interrupted
from data_bridge.scoring import Scored, ScoreRequest
from tests.builders import (
    hours_before,
    insert_outcomes,
    insert_trajectory,
    insert_window,
    make_action,
    make_call,
    make_step,
    make_trajectory,
    recorder_steps,
)
from tests.builders_run import World
from tests.builders_training import judged, make_batch, make_trainee
from tests.fakes.training_backend import FakeBackend
from tests.tiny_model import shared_tiny_model
from trainer.cli import lineage as lineage_command
from trainer.inference.policy import CpuPolicy
from trainer.ledger.read.run_facts import gather
from trainer.ledger.rewards import StoredHistory, history_of_step
from trainer.report.page import render
from trainer.rewards import RewardHistory
from trainer.run.leave_one_out import HELD
from trainer.train.backends.prepare import prepare
from trainer.train.reward_history import differences, rebuilt
from trainer.types import JudgedGroup
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows


@pytest.fixture
async def world(database: Database, tmp_path: Path) -> World:
    for window_id in hours_before(number=6):
        await insert_window(database.pool, window_id, agents=4)
    return World(database, tmp_path)


async def stored(world: World, steps: int) -> list[tuple[StoredHistory, RewardHistory]]:
    found = [await history_of_step(world.database, "hindsight", step) for step in range(1, steps + 1)]
    return [(one, one.history) for one in found if one is not None and one.history is not None]


async def test_every_trained_advantage_is_rebuilt_also_after_a_resume(world: World, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=1)
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=2))
    await world.train(FakeBackend(tmp_path))

    found = await stored(world, 3)
    assert len(found) == 3, "one step before the stop, one settled after a crash, one after it"
    for one, history in found:
        assert len(one.trained) == 8
        assert one.trained <= {member.graded.trajectory_id for member in history.members}
        assert differences(history, one.scores) == []
        assert rebuilt(history) == list(history.members)
        assert any(member.advantage != 0 for member in history.members)


@pytest.mark.parametrize(
    "column", ["score", "validity", "decision", "weight", "shaped", "pattern_weight", "credit", "advantage"]
)
async def test_a_number_that_was_changed_by_one_bit_is_found(world: World, tmp_path: Path, column: str) -> None:
    await world.train(FakeBackend(tmp_path), max_steps=1)
    row = await world.database.pool.fetchrow(f"SELECT number, {column} AS was FROM hindsight.rewards ORDER BY number")
    assert row is not None
    await world.database.pool.execute(
        f"UPDATE hindsight.rewards SET {column} = $1 WHERE number = $2", math.nextafter(row["was"], 2.0), row["number"]
    )
    [(one, history)] = await stored(world, 1)
    found = differences(history, one.scores)
    name = "verdict" if column == "score" else column
    assert any(f"{name} is stored as" in sentence for sentence in found)


async def test_the_command_shows_the_chain_and_fails_if_it_does_not_rebuild(
    world: World, database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    await world.train(FakeBackend(tmp_path))
    flags = ["--rewards", "--database-url", database_url, "--home", str(tmp_path)]

    async def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert await asyncio.to_thread(lineage_command.main, [*arguments, *flags]) == code
        told = capfd.readouterr()
        return told.out, told.err

    told, _ = await run("hindsight@step3")
    assert "Rebuilt bit for bit: 8 trained advantages of hindsight@step3" in told
    assert "verdict" in told
    answer = json.loads((await run("hindsight@step3", "--json"))[0])
    assert answer["differences"] == []
    assert len(answer["rewards"]["members"]) == len(answer["trained"]) == 8
    assert "untrained base model" in (await run("0"))[0]

    await world.database.pool.execute("UPDATE hindsight.rewards SET advantage = advantage * 2")
    _, error = await run("hindsight@step3", code=4)
    assert "does not rebuild" in error
    await world.database.pool.execute("UPDATE hindsight.batches SET credit_rule = NULL")
    assert "was trained without one" in (await run("hindsight@step3"))[0]


class OfPolicy:
    def __init__(self, policy: CpuPolicy) -> None:
        self._policy = policy

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return self._policy.score(requests)


def an_hour(number: int, scores: Sequence[float]) -> JudgedGroup:
    """BUY, SELL, a failed BUY and a HOLD."""
    said = (("BUY", True), ("SELL", True), ("BUY", False), ("HOLD", True))
    members = [
        make_trajectory(
            f"agent-{place}",
            trajectory_id=f"hour-{number}-{place}",
            steps=[make_step(action=make_action(kind, success=taken), calls=[make_call(f"{kind} ACME {place}")])],
        )
        for place, (kind, taken) in enumerate(said)
    ]
    return judged(members, scores, group_id=f"hour-{number}")


@pytest.mark.parametrize("scale", [False, True])
async def test_the_advantage_of_the_history_is_the_one_that_art_trains(
    tmp_path_factory: pytest.TempPathFactory, scale: bool
) -> None:
    from art.preprocessing.tokenize import tokenize_trajectory_groups

    policy = CpuPolicy(shared_tiny_model(tmp_path_factory), rank=2, learning_rate=1e-3, seed=0)
    hours = [an_hour(1, (0.913, 0.1, 0.0, 0.37)), an_hour(2, (0.2, 0.81, 0.0, 0.43)), an_hour(3, (0.71, 0.3, 0.1, 0.6))]
    trainee = make_trainee(min_spread=0.0, scale_rewards=scale)
    weighed = {} if scale else {f"hour-2-{place}": 3.0 for place in range(4)}
    batch = replace(make_batch(*hours), emphasis=weighed, most_emphasis=4.0)
    prepared = await prepare(batch, trainee, OfPolicy(policy))
    assert prepared.history is not None
    assert prepared.history.rule.scale is scale
    told = {one.graded.trajectory_id: one for one in prepared.history.members}
    sent = list(
        tokenize_trajectory_groups(
            policy.tokenizer, prepared.groups, allow_training_without_logprobs=False, scale_rewards=scale
        )
    )
    assert len(sent) == 9, "three valid members in each of three hours"
    for one in sent:
        member = told[str(one.trajectory.metadata["trajectory_id"])]
        assert one.advantage.hex() == member.advantage.hex()
        assert float(one.trajectory.reward).hex() == member.credit.hex()
    assert differences(prepared.history, {}) == []
    assert len({round(one.weight, 6) for one in prepared.history.members}) > 1, "hours with other weights"
    patterns = [round(one.pattern_weight, 6) for one in prepared.history.members]
    assert len(set(patterns)) == (1 if scale else 2), "an hour with an error pattern"


async def test_another_rule_gives_other_advantages_so_the_rule_is_kept(world: World, tmp_path: Path) -> None:
    hours = [an_hour(1, (0.913, 0.1, 0.0, 0.37)), an_hour(2, (0.2, 0.81, 0.0, 0.43))]
    prepared = await prepare(make_batch(*hours), make_trainee(min_spread=0.0), None)
    assert prepared.history is not None
    other = replace(prepared.history, rule=replace(prepared.history.rule, validity=0.1))
    assert any("advantage" in sentence for sentence in differences(other, {}))
    assert differences(prepared.history, {"somebody": 0.5}) == [
        "somebody was trained, and the history does not have it"
    ]


async def test_running_baselines_come_from_what_was_trained_and_are_rebuilt_also_after_a_resume(
    world: World, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"baseline": "agent", "held_out_share": 0}
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=1, **settings)
    await world.train(FakeBackend(tmp_path), **settings)
    found = await stored(world, 3)
    assert len(found) == 3
    used = [{one.graded.whose: one.graded.baseline for one in history.members} for _, history in found]
    assert set(used[0].values()) == {0.0}, "nothing is usual yet"
    for baselines in used[1:]:
        assert set(baselines) == {f"agent:agent-{number}" for number in range(1, 5)}
        ranked = sorted(baselines, key=lambda whose: baselines[whose])
        assert ranked == sorted(baselines), "in every hour agent 4 earns most and agent 1 least"
    for one, history in found:
        assert differences(history, one.scores) == []
    means, usual = await world.ledger.running_means("hindsight")
    assert min(means.values()) < usual < max(means.values())


async def turned_away(database: Database, hours: Sequence[str]) -> None:
    """Hours of four agents; in every other one of them another agent is refused its order."""
    for number, window_id in enumerate(hours):
        failing = f"agent-{number // 2 % 4 + 1}" if number % 2 else ""
        for place in range(1, 5):
            steps = recorder_steps(1, pnl=10.0 * place) + recorder_steps(1, pnl=10.0 * place)
            if failing == f"agent-{place}":
                steps[1]["action"] |= {"success": False, "error": "order_limit: 40% is more than 20%"}
            options: dict[str, Any] = {"window_id": window_id, "pnl": 10.0 * place, "steps": steps}
            await insert_trajectory(database.pool, f"agent-{place}", **options)
        await insert_outcomes(database.pool, window_id)


async def test_weights_of_error_patterns_are_in_the_history_and_rebuilt_also_after_a_resume(
    database: Database, tmp_path: Path
) -> None:
    await turned_away(database, hours_before(number=16))
    world = World(database, tmp_path)
    settings: dict[str, Any] = {"pattern_feedback": "on", "held_out_share": 0, "groups_per_step": 4}
    with pytest.raises(Interrupted):
        await world.train(FakeBackend(tmp_path), stop_after=2, **settings)
    with pytest.raises(BackendError, match="connection was lost"):
        await world.train(FakeBackend(tmp_path, lose_step=3), **settings)
    run = await world.train(FakeBackend(tmp_path), **settings)
    found = await stored(world, 4)
    assert len(found) == 4
    refused = set(
        await database.pool.fetchval("SELECT array_agg(trajectory_id) FROM hindsight.observed WHERE faults <> '[]'")
    )
    for one, history in found:
        assert history.rule.most_emphasis == 3.0
        assert differences(history, one.scores) == []
        assert rebuilt(history) == list(history.members)
        shown = {member.group_id for member in history.members if member.graded.trajectory_id in refused}
        marked = {member.group_id for member in history.members if member.graded.emphasis > 1}
        assert marked in (shown, set()), "no group without a fault"
        for member in history.members:
            counts_more = member.group_id in marked
            is_mixed = 0 < len(marked) < 4
            assert 1 < member.pattern_weight <= 3 if counts_more and is_mixed else member.pattern_weight <= 1
    groups = sum(len({one.group_id for one in history.members if one.graded.emphasis > 1}) for _, history in found)
    assert groups > 0
    assert run.summary["pattern_groups"] == groups, "never silent: of all attempts"
    page = render(await gather(database, run.run_id))
    assert f"{groups} groups that show a pattern counted more" in page

    batch_id = await database.pool.fetchval("SELECT batch_id FROM hindsight.rewards WHERE pattern_weight > 1 LIMIT 1")
    await database.pool.execute(
        "UPDATE hindsight.rewards SET emphasis = emphasis - 0.5 WHERE emphasis > 1 AND batch_id = $1", batch_id
    )
    changed = [differences(history, one.scores) for one, history in await stored(world, 4) if one.batch_id == batch_id]
    assert any("pattern_weight is stored as" in sentence for sentence in changed[0]), "another mark, another weight"


@pytest.mark.parametrize(
    ("values", "is_fed_back"),
    [
        ({}, False),
        ({"replay": "prioritised"}, True),
        ({"replay": "prioritised", "pattern_feedback": "off"}, False),
        ({"replay": "prioritised", "pattern_weight": 1}, False),
        ({"replay": "prioritised", "scale_rewards": True}, False),
    ],
)
async def test_one_flag_turns_the_feedback_of_patterns_off(
    database: Database, tmp_path: Path, values: dict[str, Any], is_fed_back: bool
) -> None:
    await turned_away(database, hours_before(number=8))
    world = World(database, tmp_path)
    run = await world.train(FakeBackend(tmp_path), held_out_share=0, groups_per_step=4, **values)
    found = await stored(world, 2)
    assert any(one.pattern_weight != 1 for _, history in found for one in history.members) is is_fed_back
    assert (run.summary["pattern_groups"] > 0) is is_fed_back


async def test_leave_one_out_is_in_the_history_and_rebuilt(database: Database, tmp_path: Path) -> None:
    hours = hours_before(number=4)
    await play_windows(database, tmp_path / "spool", Market(7, 0.2, "one", 2), scripted_cast(5, 7), hours)
    played = World(database, tmp_path)
    settings: dict[str, Any] = {"baseline": "leave-one-out", "held_out_share": 0, "judge": "outcome"}
    await played.train(FakeBackend(tmp_path), **settings)
    found = await stored(played, 2)
    assert len(found) == 2
    for one, history in found:
        assert {member.graded.whose for member in history.members} == {HELD}
        assert any(member.graded.baseline != 0 for member in history.members)
        assert differences(history, one.scores) == []
