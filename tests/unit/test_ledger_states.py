"""The transitions are a closed table: what is not in it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pytest

from trainer.ledger.states import (
    BATCH_TRANSITIONS,
    RUN_TRANSITIONS,
    WINDOW_TRANSITIONS,
    BatchState,
    RunState,
    WindowState,
    sources_of,
)


@pytest.mark.parametrize(
    ("states", "transitions"),
    [(RunState, RUN_TRANSITIONS), (BatchState, BATCH_TRANSITIONS), (WindowState, WINDOW_TRANSITIONS)],
)
def test_every_state_has_its_row(states: type[StrEnum], transitions: Mapping[StrEnum, frozenset[StrEnum]]) -> None:
    assert set(transitions) == set(states)


def test_a_batch_that_is_over_stays_so_unless_its_checkpoint_is_lost() -> None:
    assert BATCH_TRANSITIONS[BatchState.FAILED] == BATCH_TRANSITIONS[BatchState.LOST] == frozenset()
    assert BATCH_TRANSITIONS[BatchState.TRAINED] == {BatchState.LOST}


def test_a_batch_is_trained_only_once_it_was_prepared() -> None:
    assert sources_of(BatchState.TRAINED, BATCH_TRANSITIONS) == ["prepared", "submitted"]
    assert sources_of(BatchState.PREPARED, BATCH_TRANSITIONS) == []


def test_only_a_finished_run_cannot_be_taken_up() -> None:
    assert sources_of(RunState.RUNNING, RUN_TRANSITIONS) == ["failed", "interrupted", "running"]


def test_a_trained_window_is_planned_again_only_when_its_checkpoint_is_lost() -> None:
    assert WINDOW_TRANSITIONS[WindowState.TRAINED] == {WindowState.TRAINED, WindowState.PLANNED}
