"""Support desk and quest logs go the whole way: check, judge, train, evaluate, promote, report, lineage; no market."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import open_database
from data_bridge.window_ids import last_closed_windows
from tests.builders_judge import judge_settings
from tests.builders_promotion import insert_checkpoint
from tests.builders_worlds import RIGHT, Decide, desk, desk_facts, quest, quest_facts, record_log
from tests.fakes.checkpoint_server import Answers, CheckpointServer
from tests.fakes.judge_server import JudgeServer
from tests.tiny_model import shared_tiny_model
from tests.trainer_command import Command
from trainer.cli import certify_judge, check_windows, evaluate, judge_windows, lineage, promote, report, train_mmo
from trainer.judge.open import identity_of
from trainer.ledger.certificates import Certificate, find
from trainer.ledger.read.boards import JudgeBoard, judge_board

NOW = datetime(2026, 11, 2, 12, 30, tzinfo=UTC)
WINDOWS = last_closed_windows(32, NOW)
MARKET_WORDS = re.compile(r"market|P&(amp;)?L|profit|stock|ticker|\bprices?\b|dollar", re.IGNORECASE)


def recorded(url: str, home: Path, decide: Decide, facts: Callable[[int], Any], windows: int) -> None:
    async def record() -> None:
        async with open_database(url, home) as database:
            await record_log(database, home / "spool", WINDOWS[-windows:], decide, facts, NOW)

    asyncio.run(record())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def test_a_support_desk_goes_all_the_way_without_an_llm_and_without_a_market(
    make_database: Callable[..., str],
    template_database: str,
    home: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = make_database(template_database)
    recorded(url, home, desk, desk_facts, 32)
    common = ["--database-url", url, "--home", str(home), "--until", NOW.isoformat(), "--world", "desk"]

    assert check_windows.main(common) == 0
    checked = capsys.readouterr().out
    assert "--judge reward can measure" in checked
    assert "It can evaluate and promote a model" in checked
    assert "tickets resolved" in checked

    assert judge_windows.main([*common, "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    scores: dict[str, list[float]] = {}
    for window in judged["windows"]:
        for one in window["groups"][0]["verdicts"]:
            scores.setdefault(one["agent"], []).append(one["score"])
    assert min(scores["ada"] + scores["ben"]) > max(scores["cleo"])
    assert set(scores["dan"]) == {0.0}

    command = Command(url, home, shared_tiny_model(tmp_path_factory))
    flags = ("--until", NOW.isoformat(), "--world", "desk", "--groups-per-step", "4", "--max-steps", "2")
    code, said = asyncio.run(command.run(*flags))
    assert code == 0, said

    tiny = ["--base-model", str(command.base_model), "--threads", "1", "--eval-samples", "2", "--eval-points", "1"]
    assert evaluate.main([*common, *tiny]) == 0
    evaluated = capsys.readouterr().out
    assert "tickets resolved per decision" in evaluated
    pick = ["--database-url", url, "--home", str(home), "--until", NOW.isoformat()]
    assert promote.main([*pick, "--force", "--reason", "to see the way to the end"]) == 0
    assert lineage.main(["--database-url", url, "--home", str(home)]) == 0
    assert report.main(["--database-url", url, "--home", str(home)]) == 0
    told = checked + said + evaluated + capsys.readouterr().out
    assert not MARKET_WORDS.search(told), MARKET_WORDS.search(told)
    page = next(home.glob("runs/*/report.html")).read_text()
    body = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    assert "<th><code>world</code></th><td><code>desk</code></td>" in body, "the settings are on the page"
    body = body.replace("<code>price</code>", "")  # a setting: what the judge costs
    words = [body[max(0, found.start() - 80) : found.end() + 80] for found in MARKET_WORDS.finditer(body)]
    assert not words, words


@pytest.mark.parametrize(("world", "decide", "facts"), [("desk", desk, desk_facts), ("quests", quest, quest_facts)])
def test_an_llm_judge_reads_facts_state_and_results_and_no_market(
    make_database: Callable[..., str],
    template_database: str,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    world: str,
    decide: Decide,
    facts: Callable[[int], Any],
) -> None:
    url = make_database(template_database)
    recorded(url, home, decide, facts, 3)
    with JudgeServer() as server:
        judge = ["--judge-model", "honest", "--judge-base-url", server.base_url, "--judge-orders", "1"]
        flags = ["--database-url", url, "--home", str(home), "--until", NOW.isoformat(), "--world", world]
        assert judge_windows.main([*flags, *judge]) == 0
        request = server.requests[0]
    prompt = request.body["messages"][0]["content"] + request.user
    assert not MARKET_WORDS.search(prompt), MARKET_WORDS.search(prompt)
    assert not re.search(r"ada|ben|cleo", request.user)
    steps = [step for shown in request.shown for step in shown.content["steps"]]
    results = [step.get("result", "") for step in steps]
    assert any("resolved 0 → 1" in one or "quest_done 0 → 1" in one for one in results)
    claimed = [step["claimed"] for step in steps]
    assert all("openTickets" in one or "energy" in one for one in claimed)
    capsys.readouterr()


def test_a_window_without_facts_is_left_out_and_one_that_needs_none_is_not(
    make_database: Callable[..., str], template_database: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_database(template_database)
    recorded(url, home, quest, lambda _: [], 3)
    flags = ["--database-url", url, "--home", str(home), "--until", NOW.isoformat()]
    assert judge_windows.main([*flags, "--world", "quests"]) == 3
    assert "outcomes_missing" in capsys.readouterr().err
    own = home / "own.toml"
    own.write_text('name = "own"\nneeds = "nothing"\nsubjects = ["quest"]\n')
    with JudgeServer() as server:
        judge = ["--judge-model", "honest", "--judge-base-url", server.base_url, "--judge-orders", "1"]
        assert judge_windows.main([*flags, "--world", str(own), *judge]) == 0
    capsys.readouterr()


def test_the_judge_of_markets_is_refused_elsewhere(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge_windows.main(["--home", str(home), "--world", "desk", "--judge", "outcome"]) == 2
    assert "--judge reward" in capsys.readouterr().err


def test_a_potential_of_accounts_is_refused_elsewhere(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--home", str(home), "--world", "desk", "--step-credit", "--potential", "equity"]
    assert train_mmo.main(flags) == 2
    assert "the world desk has none" in capsys.readouterr().err


def test_a_certificate_comes_from_own_windows_and_says_what_it_could_not_measure(
    make_database: Callable[..., str], template_database: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_database(template_database)
    recorded(url, home, desk, desk_facts, 12)
    with JudgeServer() as server:
        judge = ["--judge-model", "honest", "--judge-base-url", server.base_url]
        flags = ["--database-url", url, "--home", str(home), "--until", NOW.isoformat(), "--world", "desk"]
        assert certify_judge.main([*flags, *judge]) in (0, 4)
    told = capsys.readouterr().out
    assert "Not measured on your own windows: skill (nobody knows which decisions were sound)" in told
    assert "scaled balances (the world names no resource)" in told
    assert "outcome (own windows)" in told
    assert not MARKET_WORDS.search(told.partition("Not measured")[0]), told

    async def stored() -> tuple[Certificate | None, JudgeBoard]:
        identity = identity_of(judge_settings(judge_model="honest", rubric="support"))
        async with open_database(url, home) as database:
            return await find(database, identity), await judge_board(database)

    certificate, board = asyncio.run(stored())
    assert certificate is not None
    assert set(certificate.unmeasured) == {"skill", "mirrored news", "scaled balances"}
    assert certificate.gaps in told
    assert [one.gaps for one in board.certificates] == [certificate.gaps]


def _as_asked(seen: str) -> str:
    return next(one for one in RIGHT if one.lower() in seen)


def test_the_gate_promotes_at_a_support_desk_what_takes_the_right_action(
    make_database: Callable[..., str],
    template_database: str,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No simulator and no LLM: replies are read by the world's pattern, and the facts say which was right."""
    url = make_database(template_database)
    recorded(url, home, desk, desk_facts, 32)

    async def two_checkpoints() -> None:
        async with open_database(url, home) as database:
            for step in (1, 2):
                await insert_checkpoint(database, step, windows=list(WINDOWS[:2]))

    asyncio.run(two_checkpoints())
    common = ["--database-url", url, "--home", str(home), "--until", NOW.isoformat()]
    replies: dict[str, Answers] = {":step1": lambda _: "let me think", ":step2": _as_asked}
    with CheckpointServer(replies) as server:
        monkeypatch.setenv("WANDB_API_KEY", "a-key-for-tests")
        monkeypatch.setenv("WANDB_TRAINING_BASE_URL", server.base_url)
        assert promote.main([*common, "hindsight@step1", "--force", "--reason", "what agents use"]) == 0
        asked = [*common, "--world", "desk", "--eval-samples", "1", "--json"]
        assert evaluate.main(asked) == 4, "the base model is not served"
        assert "did not answer" in capsys.readouterr().err
        replies[""] = lambda _: "hm"
        assert evaluate.main(asked) == 0
        assert promote.main([*common, "hindsight@step2", "--json"]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert '"promote"' in said
    assert not MARKET_WORDS.search(said.replace("profit_", "")), said
