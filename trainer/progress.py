"""How far a run is, and what its judge was paid: the numbers that a view shows, and how to print them.

The pipeline and the judge write them, views read them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, Self

from data_bridge.errors import JudgeError
from data_bridge.quality import Reason
from trainer.types import Checkpoint, JudgedGroup, JudgeFailure, PlannedWindow


def counted(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``, ``1,200 trajectories``."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith(("ry", "ly")) else f"{noun}s"
    return f"{number:,} {noun}"


@dataclass(slots=True)
class Progress:
    """Updated by the pipeline's stages, each of which writes its own fields."""

    windows: int = 0
    windows_read: int = 0
    groups: int = 0
    groups_judged: int = 0
    groups_cached: int = 0
    groups_failed: int = 0
    groups_without_signal: int = 0
    cost_usd: float = 0.0
    steps: int = 0
    """Gradient steps done in this run."""
    step: int = 0
    """The model's newest step."""
    newest: Checkpoint | None = None
    """The checkpoint of ``step``, if this process trained it."""
    trainable_tokens: int = 0
    train_seconds: float = 0.0
    rescored: int = 0
    """Batches that were prepared again because the policy had moved on."""
    pattern_groups: int = 0
    """Groups that counted more in their step because they show an error pattern."""
    latest: dict[str, float] = field(default_factory=dict)
    """The newest step's metrics."""
    stage: str = "starting"
    """What the run is doing: playing, judging, training or evaluating."""
    unit: str = ""
    """The window, batch or checkpoint in hand."""
    window: str = ""
    """The newest that was read to be judged, whatever is in hand."""
    parts: int = 0
    """Days of the closed loop; 0 for a run on a log."""
    parts_done: int = 0
    _windows: dict[str, int] = field(default_factory=dict)
    """The groups that were counted of each window."""
    _windows_read: set[str] = field(default_factory=set)
    _groups_judged: set[str] = field(default_factory=set)
    _groups_failed: set[str] = field(default_factory=set)
    """What this process has counted: a group that left a place without a step is met again in the next pass."""

    def plan(self, windows: Iterable[PlannedWindow]) -> None:
        """Count what a pass is going to read and judge, each once: later passes have fewer groups of a window left."""
        for window in windows:
            counted_before = self._windows.get(window.window_id)
            self.windows += counted_before is None
            self.groups += max(0, len(window.groups) - (counted_before or 0))
            self._windows[window.window_id] = max(len(window.groups), counted_before or 0)

    def read(self, window_id: str) -> None:
        self.windows_read += window_id not in self._windows_read
        self._windows_read.add(window_id)

    def judged(self, group_id: str) -> bool:
        """Whether this group is judged for the first time; then it is counted."""
        is_new = group_id not in self._groups_judged
        self._groups_judged.add(group_id)
        self.groups_judged += is_new
        self.groups_failed -= group_id in self._groups_failed
        self._groups_failed.discard(group_id)
        return is_new

    def failed(self, group_id: str) -> None:
        """The judge failed on this group: counted once, however often it is met, until it is judged."""
        if group_id not in self._groups_judged:
            self.groups_failed += group_id not in self._groups_failed
            self._groups_failed.add(group_id)

    @property
    def tokens_per_second(self) -> float:
        return self.trainable_tokens / self.train_seconds if self.train_seconds else 0.0

    @property
    def share(self) -> float:
        """How much of the training is done, from 0 to 1; by days in the closed loop, else by groups."""
        if self.parts:
            return min(1.0, self.parts_done / self.parts)
        return min(1.0, (self.groups_judged + self.groups_failed) / self.groups) if self.groups else 0.0

    def doing(self, stage: str, unit: str = "") -> None:
        self.stage, self.unit = stage, unit

    @property
    def at(self) -> str:
        """As an error names what the run was doing: ``judging window 2026-11-02T10:00``."""
        kind = "window " if self.stage == "judging" and self.unit else ""
        return f"{self.stage} {kind}{self.unit}".rstrip()


@dataclass(slots=True)
class JudgeUsage:
    """The running total of a judge: groups, calls, tokens and dollars of this process."""

    judged: int = 0
    from_cache: int = 0
    failed: Counter[Reason] = field(default_factory=Counter)
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that the provider's prefix cache served."""
    cost_usd: float = 0.0
    unasked: Counter[str] = field(default_factory=Counter)
    """Orders that were not asked for, by reason."""
    observations_shortened: int = 0
    characters_cut: int = 0

    def minus(self, before: JudgeUsage) -> JudgeUsage:
        """What was counted since ``before``."""
        return JudgeUsage(**{name: getattr(self, name) - getattr(before, name) for name in self.__slots__})

    def add(self, other: JudgeUsage) -> None:
        """Count what another process has counted."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def count_group(self, *, cached: bool) -> None:
        self.judged += 1
        self.from_cache += cached

    def count_failure(self, reason: Reason) -> None:
        self.failed[reason] += 1

    def count_unasked(self, reason: str, orders: int) -> None:
        self.unasked[reason] += orders

    def count_call(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int, usd: float) -> None:
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cached_tokens += cached_tokens
        self.cost_usd += usd

    def count_cut(self, observations: int, characters: int) -> None:
        self.observations_shortened += observations
        self.characters_cut += characters


HEARTBEAT = 30.0
"""Seconds of silence after which a command that is piped says that it still works."""


class Heartbeat:
    """Says every so often what a silent command is doing, from a thread of its own: the work may block the event loop.

    As a context manager, or from ``start`` to ``stop``. ``say`` gets the line.
    """

    def __init__(self, say: Callable[[str], None], doing: str, every: float | None = None) -> None:
        self._say, self._doing, self._every = say, doing, HEARTBEAT if every is None else every
        self._since = time.monotonic()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def doing(self, what: str) -> None:
        """Something else is being done, and was said."""
        self._doing, self._since = what, time.monotonic()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _beat(self) -> None:
        said = self._since
        while not self._stopped.wait(max(0.0, max(said, self._since) + self._every - time.monotonic())):
            now = time.monotonic()
            if now - max(said, self._since) >= self._every:
                said = now
                with suppress(OSError, ValueError):  # the stream is closed: nobody listens any more
                    self._say(f"still running: {self._doing} (for {now - self._since:.0f} s)")


class View(Protocol):
    """Displays a run. None of its calls may fail or block."""

    def say(self, text: str) -> None:
        """One event, as one line."""
        ...

    def show(self, progress: Progress) -> None:
        """The state of the run, after every change."""
        ...

    def close(self) -> None: ...


class Silent:
    """A view for machines and tests."""

    def say(self, text: str) -> None: ...

    def show(self, progress: Progress) -> None: ...

    def close(self) -> None: ...


_JUDGES_FAULT = frozenset({Reason.JUDGE_BAD_REPLY, Reason.JUDGE_UNAVAILABLE})
"""An exhausted budget or a group that is too long is not a failure of the judge."""


@dataclass(frozen=True, slots=True)
class FailureTally:
    """How many groups the judge answered or failed on, and how many of them failed."""

    heard: int = 0
    failed: int = 0
    last_fault: str = ""

    def plus(self, result: JudgedGroup | JudgeFailure) -> FailureTally:
        return (
            self.with_one(None, "") if isinstance(result, JudgedGroup) else self.with_one(result.reason, result.detail)
        )

    def with_one(self, reason: Reason | None, detail: str) -> FailureTally:
        """One more group: judged (None), or without a verdict for this reason."""
        if reason is None:
            return FailureTally(self.heard + 1, self.failed, self.last_fault)
        if reason in _JUDGES_FAULT:
            return FailureTally(self.heard + 1, self.failed + 1, detail or reason.value)
        return self


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """``--max-judge-failures``, the one rule for judging, training and evaluating.

    At most ``max_share`` of the groups may fail: of the expected groups if their number is known, otherwise of those
    judged so far, once they are ``enough`` or all. A judge that fails on all of the first ``hopeless`` groups is down.
    """

    max_share: float = 0.2
    enough: int = 10
    hopeless: int = 8

    def is_broken(self, tally: FailureTally, *, expected: int = 0, at_end: bool = False) -> bool:
        if tally.failed == tally.heard >= self.hopeless and self.max_share < 1:
            return True
        is_asked = expected or at_end or tally.heard >= self.enough
        return bool(is_asked) and tally.failed > self.max_share * max(expected, tally.heard)

    def check(self, tally: FailureTally, *, expected: int = 0, at_end: bool = False) -> None:
        """JudgeError if too many groups failed to continue."""
        if self.is_broken(tally, expected=expected, at_end=at_end):
            raise JudgeError(
                f"The judge failed on {tally.failed} of {counted(max(expected, tally.heard), 'group')} (the last: "
                f"{tally.last_fault}), more than --max-judge-failures {self.max_share:g} allows; check "
                "JUDGE_BASE_URL, JUDGE_MODEL and the key, then run again: verdicts already paid for are kept."
            )
