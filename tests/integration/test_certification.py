"""Certification passes an honest judge and catches every planted fault by its own line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import JudgeError
from tests.builders_judge import API_KEY, AT_ONCE, SECRETS, judge_settings
from tests.fakes import judges_with_faults as judges
from tests.fakes.judge_server import JudgeServer, Request, Response, Scorer, says
from tests.fakes.judge_server import honest as answering
from trainer.certify.examine import Examiners, calls_needed, examine
from trainer.certify.material import simulated
from trainer.certify.measures import lines_of
from trainer.certify.probes import ATTACKS
from trainer.cli import certify_judge, spawn_test_agents, train_mmo
from trainer.judge.open import open_judge
from trainer.ledger.certificates import Line, find, keep

GROUPS, AGENTS = 12, 6
Command = Callable[[Sequence[str] | None], int]


async def examined(scorer: Scorer) -> tuple[dict[str, Line], int]:
    """The lines of a certificate for a judge that scores so, and how often it was asked."""
    material = await simulated(GROUPS, AGENTS, seed=1)
    with JudgeServer(otherwise=answering(scorer)) as server:
        one, two = (judge_settings(server.base_url, judge_orders=orders) for orders in (1, 2))
        async with (
            open_judge(two, SECRETS, None, "certify", purpose="certify", retry=AT_ONCE) as both,
            open_judge(one, SECRETS, None, "certify", purpose="again", retry=AT_ONCE) as again,
            open_judge(one, SECRETS, None, "certify", purpose="certify", retry=AT_ONCE) as first,
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


@pytest.mark.parametrize("line", judges.FAULTS)
async def test_a_fault_is_caught_also_in_a_judge_that_uses_little_of_the_scale(line: str) -> None:
    lines, _ = await examined(judges.faintly(judges.FAULTS[line]))
    assert not lines[line].passed, lines[line]


async def test_a_faint_honest_judge_passes_and_one_that_tells_nothing_apart_does_not() -> None:
    lines, _ = await examined(judges.faintly(judges.honest))
    assert [line.name for line in lines.values() if not line.passed] == []
    lines, _ = await examined(judges.faintly(judges.honest, 0.0))
    assert {"contrast", "skill"} <= {line.name for line in lines.values() if not line.passed}


async def test_one_group_without_a_verdict_loses_nothing_that_was_paid_for(database: Database) -> None:
    """The others are heard and stored, so the next examination asks only what is missing."""
    material = await simulated(GROUPS, AGENTS, seed=1)

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
    played = ["--windows", "6", "--agents", "6", "--seed", "3"]
    assert await asyncio.to_thread(spawn_test_agents.main, played) == 0
    capsys.readouterr()
    with JudgeServer(otherwise=answering(judges.honest)) as server:
        asked = ["--judge-model", "fair", "--judge-base-url", server.base_url, "--groups", "6"]
        code = await asyncio.to_thread(certify_judge.main, [*asked, "--own-windows", "--json"])
    printed = capsys.readouterr()
    assert printed.out, printed.err
    certificate = json.loads(printed.out)
    names = [line["name"] for line in certificate["lines"]]
    assert "skill" in names
    assert "outcome flips (own windows)" in names
    assert "skill (own windows)" not in names
    assert code == (0 if certificate["passed"] else 4)
    kept = await database.pool.fetchrow("SELECT material, groups FROM hindsight.certificates")
    assert kept is not None
    assert tuple(kept) == ("simulated and windows", 12)


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

        code, out, _ = await run(certify_judge.main, server, "fair", "--json")
        certificate = json.loads(out)
        assert (code, certificate["passed"], certificate["cost_usd"]) == (0, True, None)
        assert certificate["calls"] == len(server.requests)
        asked = len(server.requests)
        code, out, _ = await run(certify_judge.main, server, "fair")
        assert (code, len(server.requests)) == (0, asked), "an examination is not paid for twice"
        assert "Fit to train on." in out
        assert "cost unknown" in out

        code, _, err = await run(train_mmo.main, server, "fair", *required)
        assert (code, "passed its certification" in err) == (3, True), "refused no more, only short of windows"

    monkeypatch.setenv("JUDGE_PRICE", "1/10")
    with JudgeServer(otherwise=answering(judges.honest)) as server:
        code, _, err = await run(certify_judge.main, server, "dear", "--max-cost", "0.1", "--judge-reply-tokens", "100")
        assert (code, "over_budget" in err) == (4, True)
        assert 0.09 < await database.pool.fetchval("SELECT sum(cost_usd) FROM hindsight.judge_calls") <= 0.1

    with JudgeServer(otherwise=answering(judges.FAULTS["injection"])) as server:
        code, out, _ = await run(certify_judge.main, server, "gullible", "--json", "--groups", "8")
        failed = [line["name"] for line in json.loads(out)["lines"] if not line["passed"]]
        assert (code, failed) == (4, ["injection"])
        code, _, err = await run(train_mmo.main, server, "gullible", *required)
        assert (code, "gullible failed its certification on injection" in err) == (2, True)
