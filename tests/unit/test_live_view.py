"""The view: one line per event where there is no terminal, a table where there is, silence for machines."""

from __future__ import annotations

import io

import pytest

from data_bridge.redaction import register_secret
from trainer.progress import Progress, Silent
from trainer.run import live_view
from trainer.run.live_view import Lines, Live, open_view, sentence


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def some_progress() -> Progress:
    return Progress(
        windows=4, windows_read=3, groups=8, groups_judged=5, cost_usd=0.25, step=7, trainable_tokens=100,
        train_seconds=2.0, latest={"reward": 0.5, "kl": 0.02},
    )  # fmt: skip


def test_a_line_tells_windows_groups_cost_step_reward_kl_and_speed() -> None:
    line = sentence(some_progress())
    for part in ("windows 3/4", "judged 5/8", "cost $0.25", "step 7", "reward 0.500", "kl 0.020", "50 tokens/s"):
        assert part in line


def test_without_a_terminal_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "_SHOW_EVERY", 0.0)
    stream = io.StringIO()
    view = open_view(stream=stream)
    assert isinstance(view, Lines)
    register_secret("sk-a-secret-key")
    view.say("started with sk-a-secret-key")
    view.show(some_progress())
    view.show(some_progress())
    assert stream.getvalue().splitlines() == ["started with [secret]", sentence(some_progress())]


def test_on_a_terminal_there_is_a_table_and_events_scroll_by() -> None:
    stream = Terminal()
    view = open_view(stream=stream)
    assert isinstance(view, Live)
    view.show(some_progress())
    view.say("step [7] done")
    view.close()
    assert "step [7] done" in stream.getvalue()
    assert "groups judged" in stream.getvalue()


def test_machines_get_nothing() -> None:
    assert isinstance(open_view(quiet=True, stream=Terminal()), Silent)
