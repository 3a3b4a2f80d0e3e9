"""The report of a run in a real ledger: its facts are what SQL says, its page shows the facts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from tests.builders_evaluation import make_evaluation
from tests.builders_promotion import insert_run
from tests.builders_report import HELD_OUT
from tests.builders_report_run import HOSTILE, JUDGE, RUN, WINDOWS, RecordedRun, checkpoint, record_run
from trainer.cli.report import main
from trainer.evidence import Evaluation, WindowFigures
from trainer.ledger.evaluations import save
from trainer.ledger.order_decisions import OrderDecision, OrderReason, PostgresDecisions
from trainer.ledger.read.run_facts import gather, newest_run
from trainer.ledger.read.types import DayFacts, FurtherOrders
from trainer.promote.publish import publish, roll_back
from trainer.report.page import render
from trainer.report.verdict import headline
from trainer.types import Serving


@pytest.fixture
async def recorded(database: Database, tmp_path: Path) -> RecordedRun:
    return await record_run(database, tmp_path)


async def test_counts_equal_what_sql_says(database: Database, recorded: RecordedRun) -> None:
    facts = await gather(database, RUN)
    pool = database.pool
    trained = "FROM hindsight.batch_trajectories JOIN hindsight.batches USING (batch_id) WHERE state = 'trained'"
    assert facts.trained_trajectories == await pool.fetchval(f"SELECT count(*) {trained}") == 9
    assert {window.window_id for window in facts.windows if window.steps} == {
        row["window_id"] for row in await pool.fetch(f"SELECT DISTINCT window_id {trained}")
    }
    tokens = "SELECT sum(trainable_tokens) FROM hindsight.batches WHERE state = 'trained'"
    assert facts.trained_tokens == await pool.fetchval(tokens) == 150
    excluded = await pool.fetch("SELECT reason, count(*) AS number FROM hindsight.exclusions GROUP BY 1")
    assert facts.exclusions == {row["reason"]: row["number"] for row in excluded} == {"held_out": 2, "dropout": 1}
    groups = "SELECT count(DISTINCT verdict_key) FROM hindsight.verdicts JOIN hindsight.windows USING (window_id)"
    assert facts.groups_judged == await pool.fetchval(groups) == 3


async def test_cost_counts_every_call_and_the_failed_ones_too(database: Database, recorded: RecordedRun) -> None:
    facts = await gather(database, RUN)
    cost, examiner = facts.costs
    row = await database.pool.fetchrow(
        "SELECT count(*) AS calls, sum(cost_usd) AS usd, sum(prompt_tokens) AS prompt FROM hindsight.judge_calls"
        " WHERE judge = 'gpt-test'"
    )
    assert row is not None
    assert (cost.judge, cost.calls, cost.failed_calls) == ("gpt-test", row["calls"], 1)
    assert (cost.usd, cost.prompt_tokens) == (row["usd"], row["prompt"]) == (1.625, 7000)
    assert (examiner.judge, examiner.calls, examiner.usd) == ("gpt-other", 1, 0.5)
    assert facts.cost_usd == await database.pool.fetchval("SELECT sum(cost_usd) FROM hindsight.judge_calls")
    assert facts.cost_curve[-1] == (8, 2.125)
    assert [usd for _, usd in facts.cost_curve] == sorted(usd for _, usd in facts.cost_curve)


async def test_steps_days_windows_and_words_are_the_ledger_s(database: Database, recorded: RecordedRun) -> None:
    facts = await gather(database, RUN)
    assert [(step.step, step.groups, step.trajectories, step.metrics["reward"]) for step in facts.steps] == [
        (1, 2, 6, 0.5),
        (2, 1, 3, pytest.approx(0.6)),
    ]
    assert facts.steps[0].histogram == {"edges": [0.0], "counts": [3.0, 6.0]}
    assert facts.failed_batches == ("batch 1: the job was lost",)
    assert facts.days == (
        DayFacts(1, "hindsight@step0", 1, 0.5, -2.5),
        DayFacts(2, "hindsight@step1", 2, None, None),
        DayFacts(3, "hindsight@step2", 2, 0.75, 4.5),
    )
    by_id = {window.window_id: window for window in facts.windows}
    assert list(by_id) == sorted([*WINDOWS, HELD_OUT[-1]])
    first, held_out = by_id[WINDOWS[0]], by_id[HELD_OUT[-1]]
    assert (first.state, first.steps, first.mean_score, first.excluded) == ("trained", (1,), 0.5, {"dropout": 1})
    assert first.best is not None
    assert first.worst is not None
    assert (first.best.agent_id, first.best.explanation, first.worst.score) == ("agent-3", "because 0.8", 0.2)
    assert (held_out.state, held_out.steps, held_out.excluded) == ("held_out", (), {"held_out": 2})


async def test_judge_agreement_certificate_and_code_are_known(database: Database, recorded: RecordedRun) -> None:
    facts = await gather(database, RUN)
    assert facts.judge == JUDGE
    assert facts.certificate is not None
    assert (facts.certificate.passed, facts.certificate.lines[0].name) == (True, "order")
    assert facts.agreement is not None
    assert facts.agreement.flip_share == pytest.approx(1 / 3)  # of three pairs in each group, one changes places
    assert facts.agreement.mean_difference == pytest.approx(0.2)
    assert facts.code_version == "0.1.0 (abc)"
    assert "code_version" not in facts.settings


async def test_pnl_of_what_was_trained_is_the_window_s_and_stands_beside_its_score(
    database: Database, recorded: RecordedRun
) -> None:
    facts = await gather(database, RUN)
    assert {one.trajectory_id for one in facts.scored_pnl} == set(recorded.trajectory_ids)
    assert {(one.score, one.pnl) for one in facts.scored_pnl} == {(0.2, 0.0), (0.5, 10.0), (0.8, 20.0)}


async def test_without_the_game_s_rows_there_is_a_page_without_their_pnl(
    database: Database, recorded: RecordedRun
) -> None:
    await database.pool.execute("DROP TABLE trajectories CASCADE")
    facts = await gather(database, RUN)
    assert facts.scored_pnl == ()
    assert facts.trained_trajectories == 9
    assert ", trained trajectories" not in render(facts)


async def test_orders_that_were_not_asked_for_are_counted_by_their_reason(
    database: Database, recorded: RecordedRun
) -> None:
    keys = await database.pool.fetch("SELECT DISTINCT verdict_key FROM hindsight.batch_trajectories ORDER BY 1")
    reasons = [OrderReason.CLEAR, OrderReason.SAMPLE, OrderReason.CLEAR]
    store = PostgresDecisions(database, RUN)
    for row, reason in zip(keys, reasons, strict=True):
        await store.keep(OrderDecision(row["verdict_key"], 1, reason is OrderReason.SAMPLE, reason, 3, 0.1, 0.01))
    facts = await gather(database, RUN)
    assert facts.further_orders == FurtherOrders(asked={"sample": 1}, unasked={"clear": 4})
    assert "Further orders: 1 asked for (1 sample), 4 not (4 clear)." in render(facts)


async def test_the_page_has_the_verdict_and_the_figures_of_the_ledger(
    database: Database, recorded: RecordedRun
) -> None:
    facts = await gather(database, RUN)
    page = render(facts)
    assert facts.evaluation == recorded.evaluation
    assert headline(facts) == "hindsight@step2 was promoted"
    for figure in (
        "hindsight@step2 was promoted",
        "gain +0.300 is above the required +0.000, because",
        '<dd id="windows-trained">3</dd>',
        '<dd id="trajectories-trained">9</dd>',
        '<dd id="left-out">3</dd>',
        '<dd id="cost">$2.12</dd>',
        "for a thousand trained tokens, $0.0708 for a gain of 0.01 over the incumbent.",
        "<strong>gpt-test</strong>: $1.6250 for 7 calls, 1 of them failed; 7,000 tokens in, 600 out.",
        "Certified on",
        "Not measured on your own windows: skill (nobody knows which decisions were sound).",
        "a score moves by 0.200 on average and 33.3% of pairs change rank",
        "Rank correlation over them: +1.00.",
        "0.1.0 (abc)",
        "batch 1: the job was lost",
    ):
        assert figure in page, figure


async def test_a_promotion_that_was_taken_back_is_not_reported_as_one(
    database: Database, recorded: RecordedRun, tmp_path: Path
) -> None:
    elsewhere = Serving("http://127.0.0.1:8808/v1", "earlier")
    await roll_back(database, tmp_path, "hindsight", lambda _: elsewhere, step=1, reason="it <b>lost</b> money")
    facts = await gather(database, RUN)
    assert headline(facts) == "hindsight@step2 was promoted and rolled back"
    assert "it &lt;b&gt;lost&lt;/b&gt; money" in render(facts)


async def test_no_held_out_window_is_in_a_batch(database: Database, recorded: RecordedRun) -> None:
    assert (await gather(database, RUN)).leaked_windows == ()


async def test_a_held_out_window_that_was_trained_is_shouted_about(database: Database, tmp_path: Path) -> None:
    await record_run(database, tmp_path, also_trained=HELD_OUT[3])
    facts = await gather(database, RUN)
    assert facts.leaked_windows == (HELD_OUT[3],)
    assert "Evaluation windows were trained on" in render(facts)


async def test_a_window_of_the_evaluation_that_another_run_trained_is_shouted_about(
    database: Database, recorded: RecordedRun
) -> None:
    await insert_run(database, run_id="earlier")
    await database.pool.execute(
        "INSERT INTO hindsight.batches (batch_id, run_id, model, number, policy_step, state, groups, trainable_tokens,"
        " step) VALUES ('early', 'earlier', 'hindsight', 1, 0, 'trained', '[]', 1, 1)"
    )
    await database.pool.execute(
        "INSERT INTO hindsight.batch_trajectories (batch_id, trajectory_id, model, agent_id, window_id, group_id,"
        " verdict_key, score) VALUES ('early', 't', 'hindsight', 'a', $1, 'g', 'k', 0.5)",
        HELD_OUT[0],
    )
    assert (await gather(database, RUN)).leaked_windows == (HELD_OUT[0],)


async def test_the_page_says_how_often_and_for_what_a_window_was_consulted(
    database: Database, recorded: RecordedRun
) -> None:
    page = render(await gather(database, RUN))
    assert page.count("Consulted 1 time: hindsight@step2 (promote).") == len(HELD_OUT)
    looked = replace(make_evaluation(1), windows=(WindowFigures(HELD_OUT[0], {}, {}),))
    await save(database, looked)
    assert "Consulted 2 times: hindsight@step2 (promote), hindsight@step1." in render(await gather(database, RUN))


async def test_text_of_agents_and_judges_stays_text(database: Database, tmp_path: Path) -> None:
    await record_run(database, tmp_path, words=HOSTILE)
    page = render(await gather(database, RUN))
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("&lt;script&gt;") >= 6


async def _compare_by_hand(database: Database, step: int, evaluation_id: str = "by-hand") -> Evaluation:
    """Stored later than everything else."""
    by_hand = make_evaluation(step, evaluation_id=evaluation_id)
    await save(database, by_hand)
    return by_hand


async def test_a_comparison_by_hand_replaces_neither_the_verdict_nor_its_evidence(
    database: Database, recorded: RecordedRun, tmp_path: Path
) -> None:
    before = await gather(database, RUN)
    await _compare_by_hand(database, 1)
    await _compare_by_hand(database, 2, "by-hand-too")
    assert await gather(database, RUN) == before

    to = Serving("http://127.0.0.1:8808/v1", "earlier")
    await roll_back(database, tmp_path, "hindsight", lambda _: to, step=None, reason="worse")
    await roll_back(database, tmp_path, "hindsight", lambda _: to, step=2, reason="it was not")
    facts = await gather(database, RUN)
    assert facts.evaluation == recorded.evaluation, "agents that came back to it did so without new evidence"

    await database.pool.execute("DELETE FROM hindsight.promotions")
    facts = await gather(database, RUN)
    assert (facts.evaluation, facts.ruling) == (recorded.evaluation, "promote"), "the run's own"


async def test_the_evidence_of_a_promotion_comes_before_the_run_s_own(
    database: Database, recorded: RecordedRun, tmp_path: Path
) -> None:
    again = await _compare_by_hand(database, 1)
    at = Serving("http://127.0.0.1:8808/v1", "hindsight@step1")
    await publish(
        database, tmp_path, checkpoint(1).as_release(), at, reason="better after all", evaluation=again, forced=True
    )
    facts = await gather(database, RUN)
    assert headline(facts) == "hindsight@step1 was promoted by force"
    assert facts.evaluation == again


async def test_a_run_without_an_evaluation_shows_one_by_hand_of_its_newest_checkpoint(
    database: Database, recorded: RecordedRun
) -> None:
    await database.pool.execute("DELETE FROM hindsight.promotions")
    await database.pool.execute("DELETE FROM hindsight.evaluations")
    await _compare_by_hand(database, 1)
    assert (await gather(database, RUN)).evaluation is None
    newest = await _compare_by_hand(database, 2, "by-hand-too")
    facts = await gather(database, RUN)
    assert (facts.evaluation, facts.ruling) == (newest, None)


async def test_a_run_that_died_at_once_has_facts(database: Database) -> None:
    await insert_run(database, run_id="bare")
    facts = await gather(database, "bare")
    assert (facts.steps, facts.windows, facts.judge, facts.scored_pnl) == ((), (), None, ())
    assert "nothing was trained" in render(facts)


async def test_runs_are_named_or_known_to_be_missing(database: Database, recorded: RecordedRun) -> None:
    assert await newest_run(database, "hindsight") == RUN
    with pytest.raises(NotEnoughData, match="'other' has no run yet"):
        await newest_run(database, "other")
    with pytest.raises(NotEnoughData, match=r"no run 'nope'.*--list"):
        await gather(database, "nope")


# The command


async def test_the_command_writes_the_newest_run_s_page_and_says_where(
    database_url: str, recorded: RecordedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--database-url", database_url, "--home", str(tmp_path)]
    assert await asyncio.to_thread(main, [*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == RUN
    assert told["gain"] == [0.3, 0.25, pytest.approx(0.35)]
    assert told["exclusions"] == {"held_out": 2, "dropout": 1}
    page = Path(told["report"])
    assert page == tmp_path / "runs" / RUN / "report.html"
    assert "hindsight@step2 was promoted" in page.read_text()
    assert [path.name for path in page.parent.iterdir()] == ["report.html"]

    elsewhere = tmp_path / "elsewhere" / "page.html"
    assert await asyncio.to_thread(main, [*arguments, RUN, "--output", str(elsewhere)]) == 0
    assert elsewhere.read_text() == page.read_text()
    assert capsys.readouterr().out == f"hindsight@step2 was promoted.\nReport: {elsewhere}\n"


async def test_the_command_lists_runs_and_opens_the_page(
    database_url: str,
    recorded: RecordedRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["--database-url", database_url, "--home", str(tmp_path)]
    assert await asyncio.to_thread(main, [*arguments, "--list"]) == 0
    assert capsys.readouterr().out.endswith("done, 2 steps\n")
    assert await asyncio.to_thread(main, [*arguments, "--list", "--json"]) == 0
    assert [(run["run"], run["steps"]) for run in json.loads(capsys.readouterr().out)["runs"]] == [(RUN, 2)]

    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    assert await asyncio.to_thread(main, [*arguments, "--open"]) == 0
    assert opened == [(tmp_path / "runs" / RUN / "report.html").as_uri()]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nope"], 3, "There is no run 'nope'; `python scripts/report.py --list` lists the runs."),
        (["--model", "other"], 3, "The model 'other' has no run yet"),
        ([RUN, "--output", "/proc/report.html"], 2, "`report.py --output FILE` writes it elsewhere."),
    ],
)
async def test_what_the_command_cannot_do_is_one_sentence(
    database_url: str,
    recorded: RecordedRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    found = await asyncio.to_thread(main, ["--database-url", database_url, "--home", str(tmp_path), *arguments])
    error = capsys.readouterr().err
    assert found == code
    assert said in error
    assert len(error.strip().splitlines()) == 1


async def test_a_database_that_was_never_migrated_is_one_sentence(
    make_database: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = make_database()
    for arguments in ([], ["--list"], ["run-1"]):
        assert await asyncio.to_thread(main, ["--database-url", empty, "--home", str(tmp_path), *arguments]) == 2
        error = capsys.readouterr().err
        assert "run_migrations.py" in error
        assert len(error.strip().splitlines()) == 1
