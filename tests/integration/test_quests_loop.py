"""The simulated quests all the way: played, judged, trained, evaluated, ruled on, reported; no word of a market."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from tests.builders_run import Said
from tests.fakes.judge_server import JudgeServer
from tests.integration.test_worlds import MARKET_WORDS
from tests.tiny_model import shared_tiny_model
from trainer.cli import judge_windows, lineage, spawn_test_agents
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.run.train import train

LOOP = dict[str, Any](iterations=1, windows_per_iteration=4, agents=4, eval_windows=2, eval_questions=8, decisions=1)
LOOP |= dict[str, Any](backend="cpu", threads=1, lora_rank=2, groups_per_step=2, stop_on=(), eval_samples=1)
LOOP |= dict[str, Any](until="2026-10-10T00:00", max_error_rate=1.0, max_length_ratio=1e3, max_kl=1e3)
LOOP |= dict[str, Any](world="quests")


async def test_the_closed_loop_runs_on_quests_with_no_word_of_a_market(
    database: Database,
    database_url: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tiny = shared_tiny_model(tmp_path_factory)
    said = Said()
    settings = settings_from(TrainSettings, **LOOP, home=tmp_path / "home", base_model=str(tiny), curriculum="uniform")
    run, result = await train(settings, database, str(tiny), said, simulated=True)
    assert run.progress.steps > 0
    assert result.considered is not None
    evaluation = result.considered.evaluation
    assert evaluation.measure == "coins"
    assert evaluation.reading is not None
    assert "unseen places and items" in evaluation.reading.columns
    assert evaluation.narrowing is not None
    assert evaluation.narrowing.where == "unseen places and items"
    assert "only 2 evaluation windows" in str(result.refusal)

    assert await database.pool.fetchval("SELECT count(*) FROM market_outcomes") == 0
    told = await database.pool.fetchval("SELECT count(DISTINCT window_id) FROM hindsight.window_facts")
    assert told == await database.pool.fetchval("SELECT count(*) FROM hindsight.simulated_windows") == 6
    rows = await database.pool.fetch('SELECT "stepsJson", "finalPnL" FROM trajectories')
    assert {row["finalPnL"] for row in rows} == {None}
    for step in (step for row in rows for step in json.loads(row["stepsJson"])):
        for call in step["llmCalls"]:
            del call["response"]  # a tiny model says anything
        found = MARKET_WORDS.search(json.dumps(step))
        assert found is None, found

    flags = ["--database-url", database_url, "--home", str(tmp_path / "home")]
    assert await asyncio.to_thread(lineage.main, flags) == 0
    shown = "\n".join(said.lines) + capsys.readouterr().out
    assert not MARKET_WORDS.search(shown), MARKET_WORDS.search(shown)
    page = re.sub(r"<style>.*?</style>", "", result.report.read_text(), flags=re.DOTALL)
    body = page.rpartition("<details>")[0]  # the settings come last
    found = MARKET_WORDS.search(body)
    assert found is None, body[max(0, found.start() - 80) : found.end() + 80]
    assert "coins per decision" in body


def test_an_llm_judge_reads_of_roads_and_errands_and_no_market(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--database-url", database_url, "--home", str(tmp_path)]
    play = ["--world", "quests", "--stage", "several", "--agents", "4", "--windows", "2", "--start", "2026-03-02T08:00"]
    assert spawn_test_agents.main([*common, *play]) == 0
    table = capsys.readouterr().out
    assert "coins" in table
    assert not MARKET_WORDS.search(table)
    with JudgeServer() as server:
        judge = ["--judge-model", "honest", "--judge-base-url", server.base_url, "--judge-orders", "1"]
        flags = [*common, "--until", "2026-03-02T12:00", "--world", "quests", *judge]
        assert judge_windows.main(flags) == 0
        request = server.requests[0]
    prompt = request.body["messages"][0]["content"] + request.user
    assert not MARKET_WORDS.search(prompt), MARKET_WORDS.search(prompt)
    assert re.search(r"robbers came on the road to", request.user)
    results = [step.get("result", "") for shown in request.shown for step in shown.content["steps"]]
    assert any("errand" in one for one in results)
    claimed = [step["claimed"] for shown in request.shown for step in shown.content["steps"]]
    assert all({"place", "coins", "day", "hour"} <= set(one) for one in claimed)
    capsys.readouterr()


async def test_what_cannot_be_simulated_or_played_again_is_refused_in_one_sentence(
    database: Database, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from trainer.run.leave_one_out import refuse_unknown_counterfactual

    tiny = shared_tiny_model(tmp_path_factory)
    own = LOOP | {"home": tmp_path / "home", "base_model": str(tiny)}
    with pytest.raises(ConfigurationError, match="desk cannot be simulated, only market and quests can"):
        await train(
            settings_from(TrainSettings, **(own | {"world": "desk"})), database, str(tiny), Said(), simulated=True
        )
    settings = settings_from(TrainSettings, **own, baseline="leave-one-out")
    with pytest.raises(ConfigurationError, match="replays the simulated market only"):
        refuse_unknown_counterfactual(settings, simulated=True)


def test_spawning_tells_which_world_was_played(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--database-url", database_url, "--home", str(tmp_path), "--windows", "2", "--agents", "3", "--json"]
    assert spawn_test_agents.main([*argv, "--world", "quests"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["world"], report["trajectories"], report["valid_actions"]) == ("quests", 6, 1.0)
