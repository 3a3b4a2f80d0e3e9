"""Lists in a temporary file: the same items in the same order, whatever they are and however they are read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_bridge import long_list as module
from data_bridge.errors import ConfigurationError
from data_bridge.long_list import LongList, Picked
from data_bridge.quality import Exclusion, Reason


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Everything goes through the file, in several reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_IN_MEMORY", 10)
        patch.setattr(module, "_AT_ONCE", 100)
        yield


def exclusions(*details: str) -> list[Exclusion]:
    return [Exclusion(f"t{n}", "agent", "w", Reason.DROPOUT, detail) for n, detail in enumerate(details)]


@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=30), st.integers(0, 30))
def test_the_items_come_back_in_order_also_those_that_were_added_while_it_was_read(texts: list[str], cut: int) -> None:
    items = exclusions(*texts)
    made = LongList(Exclusion, items[:cut])
    assert list(made) == items[:cut]
    reading = iter(made)
    first = [next(reading) for _ in items[:cut][:1]]
    made.extend(items[cut:])
    assert first + list(reading) == items
    assert made == items == list(made)
    assert [made[place] for place in range(-len(items), len(items))] == items + items
    assert made[1:-1] == tuple(items[1:-1])
    assert repr(made) == repr(tuple(items))


def test_it_differs_from_another_list_and_from_what_is_no_list() -> None:
    made = LongList(int, [1, 2])
    assert made != [1, 3]
    assert made != [1]
    assert made != 12
    assert made != [1, 2, 3]


def test_a_view_has_the_items_in_the_order_of_their_keys() -> None:
    items = exclusions("b", "c", "a")
    made = LongList(Exclusion, items).sorted(lambda one: one.detail)
    assert made == [items[2], items[0], items[1]]
    assert Picked(made, [2, 0]) == [items[1], items[2]]


def test_no_room_for_the_file_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a folder with room"):
        LongList(Exclusion, exclusions("x" * 200, "y"))
