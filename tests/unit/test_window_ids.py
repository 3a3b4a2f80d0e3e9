"""Window ids in the spellings that real tables hold."""

from __future__ import annotations

from datetime import datetime

import pytest

from data_bridge.window_ids import end_of, normalise, spellings_of, start_of, window_of


@pytest.mark.parametrize("raw", [*spellings_of("2026-11-02T10:00"), " 2026-11-02T10:00+00:00 ", "2026-11-02T10:59"])
def test_every_spelling_names_the_same_window(raw: str) -> None:
    assert normalise(raw) == "2026-11-02T10:00"


NO_HOURS = ["yesterday", "2026-11-02", "2026-11-02T24:00", "2026-02-30T10:00", "2026-11-02T10:00+02:00", "window-7"]


@pytest.mark.parametrize("raw", ["", *NO_HOURS, "0001-01-01T00:00", "9999-12-31T23:00"])
def test_what_names_no_hour_is_none(raw: str) -> None:
    assert normalise(raw) is None


@pytest.mark.parametrize("window_id", ["1000-01-01T00:00", "2999-12-31T23:00"])
def test_every_window_has_a_start_an_end_and_its_own_name(window_id: str) -> None:
    assert normalise(window_id) == window_id == window_of(start_of(window_id))
    assert end_of(window_id, 24 * 7) > start_of(window_id)


def test_a_moment_without_a_zone_has_no_window() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        window_of(datetime(2026, 11, 2, 10, 5))
