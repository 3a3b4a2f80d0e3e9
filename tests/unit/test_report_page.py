"""The page: the verdict first, stand-ins named, mishaps said, and nothing in it that is not ours."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from data_bridge.errors import ConfigurationError
from data_bridge.redaction import register_secret
from tests.builders_report import HELD_OUT, evaluation, example, promotion, run_facts, step_facts, window_facts
from trainer.evidence import Interval, Role
from trainer.ledger.read.judging import order_agreement
from trainer.ledger.read.trained_pnl import sample
from trainer.ledger.read.types import DayFacts, LuckFacts, RunFacts
from trainer.ledger.states import PromotionState
from trainer.report.page import figures_table, render, window_rows, write
from trainer.report.pictures import day_pictures, training_pictures
from trainer.report.verdict import headline, notices, tone


@pytest.mark.parametrize(
    ("facts", "said", "toned"),
    [
        (run_facts(promotion=promotion()), "hindsight@step7 was promoted", "good"),
        (run_facts(promotion=promotion(forced=True)), "hindsight@step7 was promoted by force", "good"),
        (
            run_facts(promotion=promotion(PromotionState.CANARY)),
            "hindsight@step7 is being tried by 10% of the agents",
            "wait",
        ),
        (
            run_facts(promotion=promotion(PromotionState.ROLLED_BACK)),
            "hindsight@step7 was promoted and rolled back",
            "bad",
        ),
        (
            run_facts(promotion=promotion(PromotionState.SUPERSEDED)),
            "hindsight@step7 was promoted and later replaced",
            "wait",
        ),
        (run_facts(), "hindsight@step7 passed the gate, not promoted yet", "good"),
        (run_facts(ruling="refuse"), "hindsight@step7 was refused", "bad"),
        (run_facts(ruling="undecided"), "hindsight@step7: undecided, not promoted", "wait"),
        (run_facts(ruling=None), "hindsight@step7 was trained, not evaluated", "wait"),
        (
            run_facts(ruling=None, evaluation=evaluation()),
            "hindsight@step7 was evaluated, the gate did not rule",
            "wait",
        ),
        (run_facts(ruling=None, steps=()), "hindsight: nothing was trained", "wait"),
        (run_facts(ruling=None, state="failed"), "The run of hindsight failed", "bad"),
        (run_facts(ruling=None, state="interrupted"), "The run of hindsight was interrupted", "wait"),
        (run_facts(ruling=None, state="running"), "The run of hindsight is still running", "wait"),
    ],
)
def test_the_headline_is_the_verdict(facts: RunFacts, said: str, toned: str) -> None:
    assert headline(facts) == said
    assert tone(facts) == toned
    body = render(facts).split("<body>")[1]
    assert body.index(said) < body.index("</h1>")
    assert f'class="verdict {toned}"' in body


def test_a_run_that_knows_next_to_nothing_still_has_a_page() -> None:
    bare = run_facts(
        ruling=None,
        ruling_reasons=(),
        state="failed",
        error="The judge did not answer.",
        finished_at=None,
        judge=None,
        groups_judged=0,
        steps=(),
        days=(),
        exclusions={},
        agreement=None,
        scored_pnl=(),
        costs=(),
        cost_curve=(),
        windows=(),
        simulated_windows=0,
        code_version=None,
    )
    page = render(bare)
    for sentence in (
        "The judge did not answer.",
        "Nothing was judged.",
        "The run used no windows.",
        "version not recorded",
    ):
        assert sentence in page


def test_the_page_carries_everything_and_asks_for_nothing() -> None:
    page = render(run_facts(promotion=promotion()))
    assert "<script" not in page
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page) == []
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_what_agents_and_judges_write_is_text() -> None:
    hostile = "</pre><script>alert(1)</script>"
    facts = run_facts(ruling_reasons=(hostile,), error=hostile, settings={hostile: hostile}, exclusions={hostile: 1})
    page = render(facts)
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 5


def test_a_secret_does_not_reach_the_page() -> None:
    register_secret("sk-very-secret-value")
    assert "sk-very-secret-value" not in render(run_facts(error="401 for sk-very-secret-value"))


def test_a_held_out_window_in_a_batch_is_shouted_about() -> None:
    leaked = run_facts(promotion=promotion(), leaked_windows=("2026-11-13T05:00",))
    alarm = re.search(r'<div class="alarm" role="alert">(.*?)</div>', render(leaked))
    assert alarm is not None
    assert "2026-11-13T05:00" in alarm[1]
    assert tone(leaked) == "bad"
    assert 'class="alarm"' not in render(run_facts())


def test_every_stand_in_and_every_mishap_is_named() -> None:
    said = " ".join(notices(run_facts(attempts=3, failed_batches=("batch 2: the job was lost",))))
    for part in ("not an LLM", "The simulated market, not a real game, played 20 windows", "on the CPU", "attempt 3"):
        assert part in said
    assert "batch 2: the job was lost" in said
    assert list(notices(run_facts(judge=None, simulated_windows=0, backend="serverless"))) == []


def test_the_table_has_a_column_a_policy_and_compares_with_all_but_the_candidate() -> None:
    rows = {row.name: row.cells for row in figures_table(evaluation(0.3))}
    assert [cell.mean for cell in rows["judge's score"]] == ["0.71", "0.41", "0.62"]
    assert [cell.mean for cell in rows["candidate's gain over it"]] == ["\N{EN DASH}", "0.3", "0.1"]
    assert rows["candidate's gain over it"][1].interval == "0.25 to 0.35"
    assert [cell.mean for cell in rows["error rate"]] == ["4.0%", "44.0%", "0.0%"]


def test_what_was_not_measured_is_not_shown_as_a_figure() -> None:
    whole = evaluation()
    unmeasured = tuple(replace(one, blocked_rate=None, kl_from_base=None) for one in whole.figures)
    rows = {row.name: row.cells for row in figures_table(replace(whole, figures=unmeasured))}
    assert {cell.mean for cell in rows["stopped by the guard"]} == {"not measured"}
    assert [cell.mean for cell in rows["KL from the base model"]] == ["not measured", "\N{EN DASH}", "\N{EN DASH}"]


def test_a_single_decision_point_is_not_shown_as_best_and_worst() -> None:
    only = example(0.1, "BUY")
    page = render(run_facts(evaluation=replace(evaluation(), best=only, worst=only)))
    assert "Best: largest gain" in page
    assert "Worst:" not in page
    both = render(run_facts(evaluation=replace(evaluation(), best=only, worst=example(0.05, "SELL"))))
    assert "Worst: smallest gain (+0.05)" in both


def test_without_intervals_the_page_says_why_there_are_none() -> None:
    few = Interval(0.1, None, None, windows=1)
    [incumbent, *others] = evaluation().comparisons
    undecided = replace(evaluation(), comparisons=(replace(incumbent, score_difference=few), *others))
    assert "Too few windows for intervals." in render(run_facts(evaluation=undecided))


def test_steps_with_other_bins_or_other_metrics_are_still_drawn() -> None:
    """A run that was taken up by a newer version, on another backend."""
    old = replace(step_facts(1), metrics={}, histogram={"edges": [0.0], "counts": [5.0, 5.0]})
    drawn = {picture.title: str(picture.svg) for picture in training_pictures(run_facts(steps=(old, step_facts(2))))}
    assert drawn["Reward (band: standard deviation)"].count("<circle") == 1
    assert "above 0.5" in drawn["Advantages, number of trajectories"]
    assert list(training_pictures(run_facts(steps=()))) == []


def test_days_that_were_played_before_a_restart_leave_a_gap() -> None:
    days = (DayFacts(1, "a", 1, 0.5, -2.5), DayFacts(2, "b", 2, None, None), DayFacts(3, "c", 2, 0.75, 4.5))
    valid, made = day_pictures(run_facts(days=days))
    assert re.findall(r"<title>(.*?)</title>", str(valid.svg)) == [
        "valid actions at day 1: 50.0%",
        "valid actions at day 3: 75.0%",
    ]
    assert "P&amp;L at day 3: 4.5" in str(made.svg)
    assert list(day_pictures(run_facts(days=()))) == []


def test_every_window_has_one_place_that_links_lead_to() -> None:
    facts = run_facts(windows=tuple(map(window_facts, range(20))))
    page = render(facts)
    places = re.findall(r'id="(window-\d[^"]*)"', page)
    assert len(places) == len(set(places)) == 20 + len(HELD_OUT)
    targets = set(re.findall(r'href="#(window-[^"]*)"', page))
    assert targets == set(places)
    [row] = [row for row in window_rows(facts) if row.facts.window_id == HELD_OUT[0]]
    assert row.gain == pytest.approx(-4 / 60)
    assert row.scores == {Role.CANDIDATE.value: 0.5, Role.INCUMBENT.value: pytest.approx(0.5 + 4 / 60)}


def test_of_a_very_long_run_the_newest_windows_are_shown() -> None:
    windows = tuple(
        replace(window_facts(0), window_id=f"2026-{month:02}-{day:02}T{hour:02}:00")
        for month in (1, 2)
        for day in range(1, 21)
        for hour in range(24)
    )
    page = render(run_facts(ruling=None, windows=windows))
    assert "The newest 500 windows; the ledger has 460 older windows." in page
    assert len(page) < 2_000_000


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigurationError, match=r"cannot be written to .*report.py --output FILE` writes it elsewhere\.$"
    ):
        write(run_facts(), tmp_path / "file" / "report.html")


def test_luck_and_what_a_gain_costs_are_said() -> None:
    page = render(run_facts(luck=LuckFacts(400, 0.21, 0.03)))
    assert "moves a score by 0.210 on average, which is luck" in page
    assert "differs from the score without the outcome by 0.030" in page
    assert 'id="luck"' not in render(run_facts())
    facts = run_facts()
    assert facts.usd_per_token == pytest.approx(1.25 / facts.trained_tokens)
    assert facts.usd_per_gain == pytest.approx(1.25 / 0.3)
    assert run_facts(gain=-0.1).usd_per_gain is None, "a loss has no price"
    assert run_facts(costs=()).usd_per_token is None


def test_agreement_counts_pairs_that_change_places() -> None:
    found = order_agreement([[{"a": 0.1, "b": 0.5, "c": 0.9}, {"a": 0.1, "b": 0.9, "c": 0.5}], [{"d": 0.3}]])
    assert found is not None
    assert found.flip_share == pytest.approx(1 / 3)
    assert found.mean_difference == pytest.approx(0.8 / 3)
    assert order_agreement([[{"a": 0.1}]]) is None
    assert order_agreement([]) is None


def test_the_same_trajectories_are_sampled_every_time_from_all_of_them() -> None:
    scores = {f"t{number}": 0.5 for number in range(1000)}
    chosen = sample(scores, 100)
    assert chosen == sample(dict(reversed(scores.items())), 100)
    assert len(set(chosen)) == 100
    assert 20 <= sum(int(one[1:]) < 500 for one in chosen) <= 80
