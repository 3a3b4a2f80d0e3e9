"""The command that certifies: what it asks, pays, prints and keeps. ``test_honest_certificate`` has what it finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import JudgeError
from tests.builders_certificate import AGENTS, GROUPS
from tests.builders_judge import API_KEY, AT_ONCE, SECRETS, judge_settings
from tests.fakes import judges_with_faults as judges
from tests.fakes.judge_server import JudgeServer, Request, Response, says
from tests.fakes.judge_server import honest as answering
from trainer.certify.examine import Examiners, examine
from trainer.certify.material import simulated
from trainer.cli import certify_judge, spawn_test_agents, train_mmo
from trainer.judge.open import identity_of, open_judge
from trainer.ledger.certificates import EDITION, Line, find, keep

Command = Callable[[Sequence[str] | None], int]


async def test_one_group_without_a_verdict_loses_nothing_that_was_paid_for(database: Database) -> None:
    """The others are heard and stored, so the next examination asks only what is missing."""
    material = simulated(GROUPS, AGENTS, seed=1)

    def fails_on_the_third(request: Request) -> Response:
        if request.ground_truth["window"] == material.groups[2].window_id:
            return says("no verdict")(request)
        return answering(judges.honest)(request)

    async def ask(server: JudgeServer) -> None:
        settings = judge_settings(server.base_url, judge_orders=2)
        async with open_judge(settings, SECRETS, database, "certify", purpose="certify", retry=AT_ONCE) as judge:
            await examine(Examiners(judge, judge, judge), material)

    with JudgeServer(otherwise=fails_on_the_third) as server:
        with pytest.raises(JudgeError, match="could not be examined"):
            await ask(server)
        answered = sum(request.ground_truth["window"] != material.groups[2].window_id for request in server.requests)
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts") == answered
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.judge_calls WHERE result = 'failed'") == 0


@pytest.fixture
def configured(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands find the database and the judge's key in their environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("JUDGE_API_KEY", API_KEY)


@pytest.mark.usefixtures("configured")
async def test_own_windows_are_examined_besides_the_simulated_ones(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a judge says of planted skill is part of every certificate: own windows alone cannot pass it."""
    played = ["--windows", "14", "--agents", "6", "--seed", "3"]
    assert await asyncio.to_thread(spawn_test_agents.main, played) == 0
    capsys.readouterr()
    with JudgeServer(otherwise=answering(judges.honest)) as server:
        asked = ["--judge-model", "fair", "--judge-base-url", server.base_url]
        code = await asyncio.to_thread(certify_judge.main, [*asked, "--own-windows", "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    certificate = json.loads(printed.out)
    names = [line["name"] for line in certificate["lines"]]
    assert "skill" in names
    assert "outcome (own windows)" in names
    assert "skill (own windows)" not in names
    assert code == (0 if certificate["passed"] else 4)
    kept = await database.pool.fetchrow("SELECT material, groups FROM hindsight.certificates")
    assert kept is not None
    assert tuple(kept) == ("simulated and windows", 48)


async def test_a_certificate_is_found_for_exactly_its_judge_and_rubric(database: Database) -> None:
    identity = identity_of(judge_settings())
    other = identity_of(judge_settings(judge_model="another"))
    line = Line("skill", 0.6, 0.75, False, "", 216, 0.5, 0.7)
    assert await find(database, identity) is None
    await keep(database, identity, [line], material="simulated", groups=4, calls=9, cost_usd=0.1)
    found = await find(database, identity)
    assert found is not None
    assert not found.passed
    assert found.lines == (line,)
    assert await find(database, other) is None


@pytest.mark.usefixtures("configured")
async def test_a_certificate_of_the_first_edition_does_not_count(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """It passed judges of wealth and of BUY: training says so, and refuses it where one is required."""
    identity = identity_of(judge_settings(judge_model="old"))
    line = Line("skill", 1.0, 0.75, False, "", 216, 0.9, 1.0)
    await keep(database, identity, [line], material="simulated", groups=4, calls=9, cost_usd=0.1)
    found = await find(database, identity)
    assert found is not None
    assert (found.edition, found.fault) == (EDITION, None)
    await database.pool.execute("UPDATE hindsight.certificates SET edition = 1")
    asked = ["--judge-model", "old", "--judge-base-url", "http://127.0.0.1:9/v1", "--dry-run", "--backend", "cpu"]
    said = "by edition 1 of the certificate, which does not count any more (edition 2 does)"
    assert await asyncio.to_thread(train_mmo.main, [*asked, "--require-certified"]) == 2
    assert said in capsys.readouterr().err
    assert await asyncio.to_thread(train_mmo.main, asked) == 3
    assert f"warning: the judge old was examined on {found.created_at:%Y-%m-%d} {said}" in capsys.readouterr().err


@pytest.mark.usefixtures("configured")
async def test_the_command_keeps_the_certificate_that_training_asks_for(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(command: Command, server: JudgeServer, model: str, *flags: str) -> tuple[int, str, str]:
        named = ["--judge-model", model, "--judge-base-url", server.base_url, *flags]
        code = await asyncio.to_thread(command, named)
        return code, *capsys.readouterr()

    required = ("--require-certified", "--dry-run", "--backend", "cpu")
    with JudgeServer(otherwise=answering(judges.honest)) as server:
        code, _, err = await run(train_mmo.main, server, "fair", *required)
        assert (code, "fair has no certificate" in err) == (2, True)
        code, _, err = await run(train_mmo.main, server, "fair", "--dry-run", "--backend", "cpu")
        assert (code, "warning: the judge fair has no certificate" in err) == (3, True)

        code, out, err = await run(certify_judge.main, server, "fair", "--json")
        certificate = json.loads(out)
        assert "Examining fair on 216 decisions: 116 calls" in err, "the bill comes first"
        assert (certificate["edition"], certificate["decisions"], certificate["calls"]) == (EDITION, 216, 116)
        assert (certificate["sound_that_lost"], certificate["careless_that_won"]) == (0.5, 0.5)
        assert certificate["binding"] == ["injections"], "the bound of no attack of twenty is the closest to its limit"
        assert (code, certificate["passed"], certificate["cost_usd"]) == (0, True, None)
        assert certificate["calls"] == len(server.requests)
        asked = len(server.requests)
        code, out, _ = await run(certify_judge.main, server, "fair")
        assert (code, len(server.requests)) == (0, asked), "an examination is not paid for twice"
        assert "Fit to train on. Closest to its limit: injections." in out
        assert "50% of the sound ones lost" in out
        assert "cost unknown" in out

        code, _, err = await run(train_mmo.main, server, "fair", *required)
        assert (code, "passed its certification" in err) == (3, True), "refused no more, only short of windows"

    monkeypatch.setenv("JUDGE_PRICE", "1/10")
    with JudgeServer(otherwise=answering(judges.honest)) as server:
        code, _, err = await run(certify_judge.main, server, "dear", "--max-cost", "0.1", "--judge-reply-tokens", "100")
        assert (code, "over_budget" in err) == (4, True)
        assert 0.09 < await database.pool.fetchval("SELECT sum(cost_usd) FROM hindsight.judge_calls") <= 0.1

    with JudgeServer(otherwise=answering(judges.FAULTS["injections"])) as server:
        code, out, _ = await run(certify_judge.main, server, "gullible", "--json")
        failed = [line["name"] for line in json.loads(out)["lines"] if not line["passed"]]
        assert (code, failed) == (4, ["injections", "injection gain"])
        assert json.loads(out)["binding"] == failed
        code, _, err = await run(train_mmo.main, server, "gullible", *required)
        assert (code, "gullible failed its certification on injections, injection gain" in err) == (2, True)


@pytest.mark.usefixtures("configured")
async def test_with_two_passes_both_are_examined_and_compared(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """A judge that is half impressed by the outcome is not fit in one pass, and is in two."""
    biased = answering(judges.biased_by_outcome(0.5), corrector=judges.claims_luck_as_reasons(0.5))
    with JudgeServer(otherwise=biased) as server:
        asked = ["--judge-model", "biased", "--judge-base-url", server.base_url, "--judge-passes", "2"]
        code = await asyncio.to_thread(certify_judge.main, [*asked, "--json"])
        printed = capsys.readouterr()
        calls = len(server.requests)
        assert await asyncio.to_thread(certify_judge.main, asked) == 0
        assert len(server.requests) == calls, "an examination is not paid for twice"
    told = json.loads(printed.out)
    assert (told["passes"], told["in_one_pass"]["passes"]) == (2, 1)
    assert (told["calls"], told["in_one_pass"]["calls"]) == (232, 116)
    assert "in two passes: 232 calls" in printed.err
    assert (code, told["passed"], told["in_one_pass"]["passed"]) == (0, True, False)
    assert "outcome" in told["in_one_pass"]["binding"]
    outcome = {line["name"]: line["value"] for line in told["lines"]}["outcome"]
    assert abs(outcome) < 0.05
    assert "In two passes the outcome moves a score by" in capsys.readouterr().out
    settings = judge_settings(judge_model="biased", judge_passes=2)
    found = await find(database, identity_of(settings))
    assert found is not None
    assert found.passed
