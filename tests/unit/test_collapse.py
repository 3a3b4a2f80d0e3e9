"""A model that comes to say the same in every hour is noticed, and the step to go back to is found."""

from __future__ import annotations

from data_bridge.authorship import Lineage, Served, plain_names
from tests.builders import make_action, make_call, make_outcomes, make_step, make_trajectory
from tests.unit.test_credit import IDENTITY
from trainer.ledger.batches import TrainedStep
from trainer.train.collapse import AnswerTally, forks_in, step_back
from trainer.train.thresholds import parse_thresholds
from trainer.types import Group, JudgedGroup, Verdict

OWN = Lineage("hindsight")
LIMITS = parse_thresholds(("answer_share>0.95",))


def hour(answers: list[str], model: str = "hindsight:step3") -> JudgedGroup:
    rows = tuple(
        make_trajectory(str(number), steps=[make_step(action=make_action(answer), calls=[make_call(model=model)])])
        for number, answer in enumerate(answers)
    )
    verdicts = tuple(Verdict(row.trajectory_id, 0.5, 0.0, "") for row in rows)
    return JudgedGroup(Group("g", rows[0].window_id, rows, make_outcomes()), verdicts, IDENTITY, "key")


def trained(step: int, share: float | None, played_by: int, parent: int | None = None) -> TrainedStep:
    metrics = {"played_by_step": float(played_by)} | ({} if share is None else {"answer_share": share})
    return TrainedStep(step, step - 1 if parent is None else parent, "run-1", metrics)


def test_the_answers_of_the_last_steps_are_counted_whatever_the_hours() -> None:
    tally = AnswerTally(OWN)
    assert "answer_share" not in tally.add([hour(["BUY"] * 8)]), "eight replies say nothing yet"
    metrics = tally.add([hour(["BUY"] * 8), hour(["SELL"] * 8), hour(["SELL"] * 4 + ["BUY"] * 4)])
    assert metrics == {"answer_share": 20 / 32, "agreement": (1 + 1 + 0.5) / 3, "played_by_step": 3}


def test_what_others_wrote_is_not_counted() -> None:
    metrics = AnswerTally(OWN).add([hour(["BUY", "SELL"] * 20, model="explorer")])
    assert metrics == {}


def test_the_base_model_under_any_name_and_a_name_without_a_step_are_the_trained_models_own() -> None:
    """As for a ratio: a model that agents run under another name may collapse as well."""
    began = hour(["BUY"]).group.trajectories[0].start_time
    known = Lineage("hindsight", plain_names(["HuggingFaceTB/SmolLM2-135M-Instruct"]), (Served(4, began),))
    base = [hour(["BUY"] * 20 + ["SELL"] * 20, model="smollm2-135m-instruct")]
    assert AnswerTally(OWN).add(base) == {}, "by the name alone it is somebody else"
    assert AnswerTally(known).add(base) == {"answer_share": 0.5, "agreement": 0.5, "played_by_step": 0}
    plain = AnswerTally(known).add([hour(["BUY"] * 40, model="hindsight")])
    assert plain == {"answer_share": 1.0, "agreement": 1.0, "played_by_step": 4}


def test_a_row_has_one_vote_on_who_played_however_many_calls_it_has() -> None:
    honest = hour(["BUY", "SELL", "BUY"]).group.trajectories
    liar = make_trajectory("9", steps=[make_step(calls=[make_call(model="hindsight:step9")] * 200)])
    rows = (*honest, liar)
    verdicts = tuple(Verdict(row.trajectory_id, 0.5, 0.0, "") for row in rows)
    group = JudgedGroup(Group("g", liar.window_id, rows, make_outcomes()), verdicts, IDENTITY, "key")
    assert AnswerTally(OWN).add([group])["played_by_step"] == 3


def test_back_to_the_last_step_that_still_gave_different_answers() -> None:
    steps = [trained(1, 0.6, 0), trained(2, 0.7, 1), trained(3, 0.8, 2), trained(4, 0.97, 3)]
    back = step_back(LIMITS, steps)
    assert back is not None
    assert back.step == 2
    assert "answer_share is 0.97" in back.reason


def test_a_log_in_which_one_action_always_takes_all_is_no_collapse() -> None:
    assert step_back(LIMITS, [trained(1, 0.98, 0), trained(2, 0.99, 1)]) is None


def test_what_a_policy_that_was_left_behind_played_does_not_undo_again() -> None:
    steps = [trained(1, 0.6, 0), trained(2, 0.7, 1), trained(3, 0.97, 2), trained(4, 0.99, 2, parent=1)]
    assert step_back(LIMITS, steps[:3]) is not None
    assert step_back(LIMITS, steps) is None
    assert forks_in(steps, "run-1") == 1
    assert forks_in(steps, "another") == 0


def test_a_run_that_starts_elsewhere_has_not_gone_back_itself() -> None:
    assert forks_in([trained(7, 0.6, 2, parent=2), trained(8, 0.6, 7)], "run-1") == 0


def test_without_a_measure_nothing_is_undone() -> None:
    assert step_back(LIMITS, [trained(1, 0.6, 0), trained(2, None, 1)]) is None
    assert step_back((), [trained(1, 0.6, 0), trained(2, 0.99, 1)]) is None
    assert step_back(LIMITS, []) is None
