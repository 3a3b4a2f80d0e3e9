"""Facts: whatever rows hold, each is a fact or a count; what two sources tell differently counts for neither."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_bridge.errors import ConfigurationError
from data_bridge.facts import facts_of, facts_query
from data_bridge.models import Fact, FactDoubts, WindowOutcomes
from data_bridge.survey import Totals
from data_bridge.worlds.load import load_world
from data_bridge.worlds.world import Completeness
from trainer.run.judge_reach import doubts_of

ANY_LOAD = settings(deadline=None, suppress_health_check=list(HealthCheck))

CLOSED = datetime(2026, 11, 2, 11, 10, tzinfo=UTC)

ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.lists(st.integers(), max_size=2)
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "subject": st.sampled_from(["T-1", "T-2", " ", ""]) | ANYTHING,
            "kind": st.sampled_from(["resolved", "note"]) | ANYTHING,
            "source": st.sampled_from(["game", "view"]),
            "value_before": ANYTHING,
            "value_after": ANYTHING,
            "text": ANYTHING,
            "happened_at": ANYTHING,
            "visible": ANYTHING,
            "written_at": st.sampled_from(["2026-11-02T11:00:00+00:00", "2026-11-03T00:00:00+00:00", "never", None]),
        },
    ),
    max_size=12,
)


def row(after: float | None, **more: Any) -> dict[str, Any]:
    return {"subject": "T-1", "kind": "resolved", "value_after": after, **more}


@ANY_LOAD
@given(ROWS)
def test_every_row_is_a_fact_or_counted_and_none_is_told_twice(rows: list[dict[str, Any]]) -> None:
    facts, doubts = facts_of(rows, CLOSED)
    named = [(fact.subject, fact.kind) for fact in facts]
    assert named == sorted(set(named))
    assert all(fact.is_known for fact in facts)
    assert doubts.late <= len(facts)
    assert doubts.malformed + doubts.unknown + doubts.contradictory + len(facts) <= len(rows)
    assert bool(rows) == bool(facts or doubts)
    world = load_world("desk")
    outcomes = WindowOutcomes(facts=facts, doubts=doubts)
    assert (world.known(outcomes).completeness is Completeness.COMPLETE) == bool(facts)


@ANY_LOAD
@given(ROWS, st.randoms())
def test_the_order_of_rows_means_nothing(rows: list[dict[str, Any]], chance: Any) -> None:
    shuffled = chance.sample(rows, len(rows))
    told = [
        [(f.subject, f.kind, f.before, f.after, f.text) for f in facts_of(one, CLOSED)[0]] for one in (rows, shuffled)
    ]
    assert told[0] == told[1]


def test_unknown_contradictory_and_late_facts_are_counted_and_said_in_one_sentence() -> None:
    assert facts_of([row(None)], CLOSED) == ((), FactDoubts(unknown=1))
    assert facts_of([row(1.0), row(0.0, source="view")], CLOSED) == ((), FactDoubts(contradictory=1))
    late = (CLOSED + timedelta(seconds=1)).isoformat()
    facts, doubts = facts_of([row(1.0, written_at=late), row(None, source="view")], CLOSED)
    assert (facts, doubts) == ((Fact("T-1", "resolved", after=1.0),), FactDoubts(late=1))
    assert doubts_of(Totals(doubts=FactDoubts(2, 1, 3))) == (
        "Of the facts 2 have no value yet, 1 are told differently by two sources and count for neither, 3 came after "
        "their window had closed: a correction counts from then on, and nothing is trained again for it."
    )
    assert doubts_of(Totals()) is None


@pytest.mark.parametrize("view", ["facts; DROP TABLE x", 'a"b', "a.b.c", "", "A", "x" * 64, "1a", "a b", "a.", "a--"])
def test_a_view_is_a_plain_name_and_nothing_else(view: str) -> None:
    with pytest.raises(ConfigurationError, match="--facts-view"):
        facts_query(view)


def test_a_view_may_have_a_schema() -> None:
    assert 'FROM "game"."facts" f' in facts_query("game.facts")
