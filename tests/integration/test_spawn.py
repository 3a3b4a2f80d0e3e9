"""Simulated windows in a real Postgres: rows like the game's, the same for the same seed, and replayable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from data_bridge.errors import ConfigurationError
from data_bridge.migrate import FOLDER
from data_bridge.quality import CheckedWindow, Reason, Rules, check, fault_of_outcomes
from data_bridge.reader import WindowReader
from data_bridge.window_ids import end_of, window_of, windows_from
from data_bridge.worlds.load import load_world
from tests.fakes.policy_server import PolicyServer
from tests.tiny_model import shared_embedded_home, shared_tiny_model
from trainer.cli.spawn_test_agents import main
from trainer.ledger.simulation import planted_skills
from trainer.world.agents import scripted_cast
from trainer.world.dirt import soil
from trainer.world.market import Market
from trainer.world.play import play_windows
from trainer.world.quests.errands import Quests
from trainer.world.replay import decision_points, load_windows, score_reply
from trainer.world.rules import SimulatedWorld
from trainer.world.worlds import rules_of

WINDOWS = windows_from("2026-03-02T00:00", 6)
MARKET = Market(7, luck=0.2, stage="several", decisions=3)
QUESTS = Quests(7, luck=0.2, stage="several", decisions=3)
both_worlds = pytest.mark.parametrize("world", [MARKET, QUESTS], ids=["market", "quests"])
TRUTH = {"market": "market_outcomes", "quests": "hindsight.window_facts"}
TABLES = (
    '"User"',
    "trajectories",
    "llm_call_logs",
    "market_outcomes",
    "hindsight.simulated_windows",
    "hindsight.simulated_agents",
)


async def play(database: Database, spool: Path, market: SimulatedWorld = MARKET, agents: int = 5) -> None:
    cast = scripted_cast(agents, market.seed, rules_of(market))
    await play_windows(database, spool, market, cast, WINDOWS, write_together=4)


async def content(database: Database, world: str = "market") -> dict[str, list[str]]:
    """Every column of every row, as text, but for when a fact was written."""
    tables = [TRUTH[world] if table == TRUTH["market"] else table for table in TABLES]
    rows = "to_jsonb(t) - '{written_at,first_written}'::text[]"
    return {
        table: [row[0] for row in await database.pool.fetch(f"SELECT ({rows})::text FROM {table} t ORDER BY 1")]
        for table in tables
    }


async def read(database: Database, windows: Sequence[str] = WINDOWS, world: str = "market") -> list[CheckedWindow]:
    now = end_of(windows[-1], 1) + timedelta(hours=1)
    rules = Rules(now=now, min_agents=2, world=load_world(world))
    reader = WindowReader(database, rules)
    return [check(window, rules) async for window in reader.stream(await reader.discover(everything=True))]


@pytest.mark.parametrize("kind", [Market, Quests])
async def test_the_same_seed_is_the_same_database_and_another_seed_another(
    kind: type[Market] | type[Quests], make_database: Callable[..., str], template_database: str, tmp_path: Path
) -> None:
    found = []
    for seed in (7, 7, 8):
        async with open_database(make_database(template_database), tmp_path) as database:
            await play(database, tmp_path / "spool", kind(seed, decisions=2))
            found.append(await content(database, kind.name))
    same, again, other = found
    assert same == again
    assert all(same.values())
    facts = TRUTH["quests"]  # about the same errand two worlds may tell the same
    assert all(not set(same[table]) & set(other[table]) for table in same if table != facts)
    assert facts not in same or same[facts] != other[facts]


async def test_the_reader_finds_whole_windows_with_what_the_agents_made(database: Database, tmp_path: Path) -> None:
    await play(database, tmp_path)
    checked = await read(database)
    assert [window.window.window_id for window in checked] == list(WINDOWS)
    for window in checked:
        assert not window.excluded
        assert len(window.usable) == 5
        assert len({trajectory.role for trajectory in window.usable} - {None}) > 1
        assert len(window.window.outcomes.stocks) == 3
        assert window.window.outcomes.predictions[0].outcome in ("YES", "NO")
        for trajectory in window.usable:
            assert trajectory.window_pnl is not None
            assert trajectory.final_balance is not None
            assert trajectory.starting_balance is not None
            assert trajectory.final_balance - trajectory.starting_balance == pytest.approx(
                trajectory.window_pnl, abs=0.02
            )
            assert window_of(trajectory.end_time) == window.window.window_id
            assert len(trajectory.llm_calls) == 3
    lifetimes = [t.steps[0].state.lifetime_pnl for t in checked[-1].usable]
    assert any(lifetimes)  # lifetime figures, not the window's


@both_worlds
async def test_nothing_that_is_read_for_training_or_judging_tells_the_planted_truth(
    world: SimulatedWorld, database: Database, tmp_path: Path
) -> None:
    await play(database, tmp_path, world)
    skills = await planted_skills(database)
    assert sorted(skills.values()) == [0.0, 0.25, 0.5, 0.75, 1.0]
    found = await content(database, world.name)
    public = "\n".join(line for table in list(found)[:4] for line in found[table])
    assert not [word for word in ("skill", "luck", "seed", "planted", "simulated") if word in public.lower()]
    agents = sorted(skills)
    assert [skills[agent] for agent in agents] != sorted(skills.values())  # ids are in no order of skill


@both_worlds
async def test_a_second_call_leaves_what_was_played_alone_and_other_settings_are_refused(
    world: SimulatedWorld, database: Database, tmp_path: Path
) -> None:
    await play(database, tmp_path, world)
    before = await content(database, world.name)
    await play(database, tmp_path, world)
    assert await content(database, world.name) == before
    another = QUESTS if world is MARKET else MARKET
    for other in (Market(8), Quests(8), another):
        with pytest.raises(ConfigurationError, match="already simulated with other settings"):
            await play(database, tmp_path, other)


async def test_of_two_worlds_that_want_the_same_hours_at_once_one_is_refused_and_none_is_mixed(
    database: Database, tmp_path: Path
) -> None:
    worlds = [Market(seed, decisions=2) for seed in (7, 8)]
    ended = await asyncio.gather(
        *(play(database, tmp_path / str(world.seed), world) for world in worlds), return_exceptions=True
    )
    [refused] = [end for end in ended if end is not None]
    assert isinstance(refused, ConfigurationError)
    assert "already simulated with other settings" in str(refused)
    winner = worlds[ended.index(None)]
    seeds = await database.pool.fetch("SELECT DISTINCT world_seed FROM hindsight.simulated_windows")
    assert [row[0] for row in seeds] == [winner.seed]
    assert [len(window.window.trajectories) for window in await read(database)] == [5] * len(WINDOWS)
    agents = await database.pool.fetch('SELECT DISTINCT "agentId" FROM trajectories')
    assert {row[0] for row in agents} == {agent.agent_id for agent in scripted_cast(5, winner.seed)}


async def test_a_play_killed_while_it_wrote_goes_on_with_its_own_seed_only(
    make_database: Callable[..., str], template_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    async def dies(*_: object) -> None:
        raise Killed

    found = []
    for is_killed in (False, True):
        async with open_database(make_database(template_database), tmp_path) as database:
            if is_killed:
                with monkeypatch.context() as killing:
                    killing.setattr("trainer.ledger.simulation.remember", dies)
                    with pytest.raises(Killed):
                        await play(database, tmp_path / "spool")
                with pytest.raises(ConfigurationError, match="already simulated with other settings"):
                    await play(database, tmp_path / "spool", Market(8))
                assert await load_windows(database, WINDOWS) == {}
            await play(database, tmp_path / "spool")
            found.append(await content(database))
    assert found[0] == found[1]


async def test_an_interrupted_play_goes_on_to_the_same_content(
    make_database: Callable[..., str], template_database: str, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    async def once(database: Database, stop_after: int | None) -> None:
        seen = 0

        def count(_: object) -> None:
            nonlocal seen
            seen += 1
            if seen == stop_after:
                raise Stop

        await play_windows(database, tmp_path / "s", MARKET, scripted_cast(4, 7), WINDOWS, on_window=count)

    found = []
    for stop_after in (None, 2):
        async with open_database(make_database(template_database), tmp_path) as database:
            if stop_after is not None:
                with pytest.raises(Stop):
                    await once(database, stop_after)
            await once(database, None)
            found.append(await content(database))
    assert found[0] == found[1]


async def test_a_live_game_is_not_played_into(database: Database, tmp_path: Path) -> None:
    await database.pool.execute("UPDATE hindsight.migrations SET skipped = true WHERE number = 1")
    with pytest.raises(ConfigurationError, match="belongs to a game"):
        await play(database, tmp_path)
    assert await database.pool.fetchval("SELECT count(*) FROM trajectories") == 0


async def test_the_command_leaves_nothing_in_a_live_game(
    make_database: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    game = make_database()
    connection = await asyncpg.connect(game)
    await connection.execute((FOLDER / "0001_game_tables.sql").read_text())  # as the game's own migrations do
    schemas = "SELECT nspname FROM pg_namespace ORDER BY 1"
    before = await connection.fetch(schemas)
    argv = ["--database-url", game, "--home", str(tmp_path), "--windows", "1", "--agents", "2"]
    code, _, error = await asyncio.to_thread(run, argv, capsys)
    assert code == 2
    assert "belongs to a game" in error
    assert await connection.fetch(schemas) == before
    assert await connection.fetchval("SELECT count(*) FROM trajectories") == 0
    await connection.close()


def test_the_command_fills_an_empty_database(
    make_database: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--database-url", make_database(), "--home", str(tmp_path), "--windows", "1", "--agents", "2", "--json"]
    code, report, _ = run(argv, capsys)
    assert (code, report["trajectories"]) == (0, 2)


async def test_a_logged_decision_is_rebuilt_exactly_and_scored_as_it_was(database: Database, tmp_path: Path) -> None:
    await play(database, tmp_path)
    simulated = await load_windows(database, WINDOWS)
    assert set(simulated) == set(WINDOWS)
    for checked in await read(database):
        for trajectory in checked.usable:
            points = decision_points(simulated[trajectory.window_id], trajectory)
            made = 0.0
            for point, step in zip(points, trajectory.steps, strict=True):
                assert list(point.messages) == step.llm_calls[0].chat()
                assert point.book.lifetime_pnl + point.gain == pytest.approx(step.state.lifetime_pnl, abs=0.01)
                score = score_reply(point, step.llm_calls[0].response)
                assert step.action is not None
                assert score.error == step.action.failure
                made += score.pnl
            assert made == pytest.approx(trajectory.window_pnl, abs=0.02)


async def test_an_errand_is_rebuilt_exactly_and_brings_what_the_facts_say(database: Database, tmp_path: Path) -> None:
    await play(database, tmp_path, QUESTS, agents=9)
    simulated = await load_windows(database, WINDOWS)
    assert await database.pool.fetchval("SELECT count(*) FROM market_outcomes") == 0
    carried_together = 0
    for checked in await read(database, world="quests"):
        assert not checked.excluded
        assert len(checked.usable) == 9
        for trajectory in checked.usable:
            points = decision_points(simulated[trajectory.window_id], trajectory)
            made = 0.0
            for point, step in zip(points, trajectory.steps, strict=True):
                assert list(point.messages) == step.llm_calls[0].chat()
                assert step.action is not None
                score = score_reply(point, step.llm_calls[0].response)
                assert score.error == step.action.failure
                carried_together += step.action.action_type == "JOIN" and score.pnl > 0
                made += score.pnl
            [coins] = [one for one in checked.window.outcomes.facts if one.subject == trajectory.agent_id]
            assert (coins.kind, coins.change) == ("coins", made)
    assert carried_together > 0


async def test_a_hundred_agents_share_a_window(database: Database, tmp_path: Path) -> None:
    await play_windows(database, tmp_path, Market(7), scripted_cast(100, 7), WINDOWS[:2])
    assert [len(window.usable) for window in await read(database, WINDOWS[:2])] == [100, 100]


async def test_every_fault_of_real_tables_costs_its_own_row(database: Database, tmp_path: Path) -> None:
    await play_windows(database, tmp_path, MARKET, scripted_cast(25, 7), WINDOWS)
    faults = await soil(database, WINDOWS, 0.4, seed=7)
    reasons: dict[Reason, int] = {}
    usable = 0
    for window in await read(database):
        usable += len(window.usable)
        for exclusion in window.excluded:
            reasons[exclusion.reason] = reasons.get(exclusion.reason, 0) + 1
    assert reasons[Reason.MALFORMED_JSON] >= faults["malformed JSON"] > 0
    assert reasons[Reason.OVERSIZED] == faults["oversized"] > 0
    assert reasons[Reason.NO_LLM_CALLS] == faults["no LLM calls"] > 0
    assert reasons[Reason.EVALUATION_ROW] == faults["evaluation row"] > 0
    assert reasons[Reason.DUPLICATE_AGENT] == faults["same agent twice"] > 0
    assert Reason.BOOKS_CONTRADICT not in reasons, "what the market wrote itself agrees with its prices"
    rows = await database.pool.fetchval("SELECT count(*) FROM trajectories")
    assert usable + sum(reasons.values()) == rows == 150 + faults["same agent twice"]
    assert faults["no window id"] > 0
    assert faults["window id with seconds"] > 0


async def test_half_of_the_outcomes_is_not_all_of_them(database: Database, tmp_path: Path) -> None:
    await play(database, tmp_path)
    faults = await soil(database, WINDOWS, 1.0, seed=3)
    found = [fault_of_outcomes(checked.window.outcomes) for checked in await read(database)]
    reasons = [fault[0] for fault in found if fault is not None]
    assert reasons.count(Reason.OUTCOMES_PARTIAL) == faults["half of the outcomes"] > 0
    assert reasons.count(Reason.OUTCOMES_MISSING) == faults["no outcomes"] > 0


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if code == 0 else {}, captured.err


def test_the_command_plays_and_says_what_came_of_it(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--database-url", database_url, "--home", str(tmp_path), "--windows", "30", "--agents", "4", "--json"]
    code, report, _ = run(argv, capsys)
    assert code == 0
    assert report["trajectories"] == 120
    assert report["valid_actions"] > 0.95
    assert {line["windows"] for line in report["agents"]} == {30}
    assert end_of(report["last_window"], 1) <= datetime.now(UTC)
    assert end_of(report["first_window"], 1) > datetime.now(UTC) - timedelta(days=7)
    code, report, _ = run(argv, capsys)
    assert (code, report["windows_played"], report["windows_already_there"]) == (0, 0, 30)


def test_the_command_prints_a_table_and_a_line_of_progress(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--database-url", database_url, "--home", str(tmp_path), "--windows", "10", "--agents", "3"]
    assert main([*argv, "--dirty", "0.5", "--until-now"]) == 0
    captured = capsys.readouterr()
    for word in ("P&L", "win rate", "error rate", "valid actions", "trajectories/s", "Faults added"):
        assert word in captured.out
    assert "played 10 of 10 windows" in captured.err

    assert main([*argv, "--dirty", "0.5", "--until-now"]) == 0
    captured = capsys.readouterr()
    assert "Left alone: 10 windows played before." in captured.out
    assert "Faults added" not in captured.out, "what is soiled is not soiled again"
    assert "valid actions" not in captured.out, "there were none"


async def test_an_endpoint_decides_with_its_key_and_its_tokens_are_kept(
    database: Database,
    database_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POLICY_API_KEY", "policy-key-1234")
    argv = ["--database-url", database_url, "--home", str(tmp_path), "--start", WINDOWS[0], "--windows", "2"]
    with PolicyServer("SELL $TICKER 20%") as server:
        argv += ["--policy", server.base_url, "--policy-model", "tiny", "--agents", "3", "--json"]
        code, report, _ = await asyncio.to_thread(run, argv, capsys)
    assert code == 0
    assert report["valid_actions"] == 1.0
    assert len(server.requests) == 6
    assert server.keys == {"Bearer policy-key-1234"}
    call = (await read(database, WINDOWS[:2]))[0].usable[0].llm_calls[0]
    assert (call.model, call.completion_token_ids, call.completion_logprobs) == ("tiny", [5], [-0.5])


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--policy", "magic"], "--policy: 'magic' is neither scripted"),
        (["--start", "yesterday"], "--start: 'yesterday' is not a window id"),
        (["--start", "2999-01-01T00:00"], "has not ended"),
        (["--luck", "2"], "--luck"),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    argv: list[str], sentence: str, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--database-url", database_url, "--home", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_an_endpoint_that_refuses_is_one_sentence(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with PolicyServer("", status=401) as server:
        argv = ["--database-url", database_url, "--home", str(tmp_path), "--windows", "2", "--policy", server.base_url]
        assert main(argv) == 4
    assert "check the URL, the key and the model's name" in capsys.readouterr().err


async def _plays_with_tokens(argv: list[str], database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*argv, "--start", WINDOWS[0], "--windows", "2", "--policy", "embedded", "--agents", "4", "--json"]
    code, report, _ = await asyncio.to_thread(run, argv, capsys)
    assert code == 0
    assert report["trajectories"] == 8
    for window in await read(database, WINDOWS[:2]):
        assert len(window.usable) == 4
        for trajectory in window.usable:
            [call] = trajectory.llm_calls
            assert call.model == "hindsight@step0"
            assert call.completion_token_ids
            assert call.completion_logprobs
            assert len(call.completion_token_ids) == len(call.completion_logprobs) <= 12
            assert all(logprob <= 0 for logprob in call.completion_logprobs)
            assert call.logprobs_temperature == 1.0


async def test_a_model_on_this_machine_plays_with_its_tokens_and_their_log_probabilities(
    database: Database,
    database_url: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = str(shared_tiny_model(tmp_path_factory))
    argv = ["--database-url", database_url, "--home", str(tmp_path), "--base-model", tiny, "--threads", "1"]
    await _plays_with_tokens(argv, database, capsys)


@pytest.mark.model
async def test_the_embedded_model_plays_with_its_tokens_and_their_log_probabilities(
    database: Database,
    database_url: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "models").symlink_to(shared_embedded_home(tmp_path_factory) / "models")
    await _plays_with_tokens(["--database-url", database_url, "--home", str(tmp_path)], database, capsys)
