"""Which windows are kept for the gate: the newest that nobody has looked at, and a gap before them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest

from data_bridge.quality import Reason
from data_bridge.window_ids import windows_from
from trainer.config.sections import HeldOutSettings
from trainer.statistics.hold_out import OneHour, hold_out

HOURS = windows_from("2026-11-02T00:00", 200)


def _split(
    hours: int, consulted: Collection[str] = (), trained: Collection[str] = (), **settings: Any
) -> tuple[list[str], list[str]]:
    """The windows to evaluate on and those of the embargo, of the first ``hours``."""
    usable = [OneHour(name) for name in HOURS[:hours] if name not in trained]
    kept = hold_out(usable, consulted, HeldOutSettings(**settings), trained=trained)
    return kept.evaluation, [name for name, (why, _) in kept.reasons.items() if why is Reason.EMBARGO]


@pytest.mark.parametrize(
    ("hours", "share", "kept"), [(29, 0.25, 0), (30, 0.25, 15), (100, 0.25, 25), (200, 0.25, 40), (200, 0.0, 0)]
)
def test_a_share_is_kept_but_enough_to_rule_and_no_more_than_an_evaluation_uses(
    hours: int, share: float, kept: int
) -> None:
    evaluation, embargo = _split(hours, held_out_share=share)
    assert evaluation == list(HOURS[hours - kept : hours] if kept else ())
    assert embargo == list(HOURS[hours - kept - 3 : hours - kept] if kept else ())


def test_a_longer_window_is_in_the_embargo_by_its_end() -> None:
    long = OneHour(HOURS[20], hours=10)  # ends where the evaluation begins, less two hours
    usable = [*(OneHour(name) for name in HOURS[:20]), long, *(OneHour(name) for name in HOURS[32:47])]
    kept = hold_out(usable, (), HeldOutSettings(embargo=timedelta(hours=3)))
    assert kept.evaluation == list(HOURS[32:47])
    assert [name for name, (why, _) in kept.reasons.items() if why is Reason.EMBARGO] == [HOURS[20]]


def test_a_window_that_was_consulted_is_not_kept_again_and_is_not_trained_before_those_that_decide() -> None:
    evaluation, embargo = _split(60, consulted=HOURS[50:60])
    assert evaluation == list(HOURS[35:50])
    assert embargo == [*HOURS[32:35], *HOURS[50:60]]


def test_hours_too_few_to_rule_do_not_hold_up_later_ones_that_have_served() -> None:
    """The embargo of the last evaluation is left between what was trained and what has served."""
    assert _split(40, consulted=HOURS[25:40], trained=set(HOURS[:22])) == ([], [])
    evaluation, _ = _split(45, consulted=HOURS[25:40], trained=set(HOURS[:22]))
    assert evaluation == list(HOURS[40:45])


def test_what_decides_comes_after_what_is_trained_already_and_few_new_windows_are_kept_too() -> None:
    trained = set(HOURS[:42])
    assert _split(60, trained=trained) == (list(HOURS[45:60]), list(HOURS[42:45]))
    assert _split(44, trained=trained) == (list(HOURS[42:44]), []), "few as they are, they are not trained"
