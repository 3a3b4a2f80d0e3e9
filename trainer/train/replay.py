"""Fills the places that groups without signal leave empty with groups that were trained before.

A step has ``--groups-per-step`` places. A group whose members are all judged alike takes a place and teaches nothing;
with ``--replay`` that place goes to a group of the ledger's buffer: first trained at most ``--replay-lag`` steps ago,
used fewer than ``--replay-uses`` times, and never more than ``--replay-share`` of the step. ``uniform`` draws each with
the same chance, ``prioritised`` by the spread of its scores times its freshness (1 in the newest step, falling by equal
parts to nothing after the lag). While there are significant error patterns, half of that chance belongs to the groups
that show one, each pattern an equal part.

A draw follows from the seed, the model, the step and what the ledger has: a killed run draws the same groups again. The
rows are read from the game's tables; a group of which one is gone, changed or at fault is passed over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_bridge.database import Database
from data_bridge.reader import WindowReader
from trainer.config.training import ReplaySettings, ReplayShareSettings
from trainer.ledger.observations import Marks, groups_with_patterns
from trainer.ledger.replays import Replayable, replayable, stored_groups
from trainer.ledger.runs import Ledger
from trainer.train.stored_groups import with_rows
from trainer.types import Group, JudgedGroup


@dataclass(frozen=True, slots=True)
class StepGroups:
    """The judged groups of one step, and how many further places groups without signal left empty."""

    groups: tuple[JudgedGroup, ...]
    empty: int = 0
    without_signal: tuple[str, ...] = ()
    """The groups that left them: with this step they are settled, and no resumed run counts their places again."""


class Places:
    """Collects judged groups into steps. Without replay (``most_empty`` 0) only groups with signal take a place."""

    def __init__(self, places: int, most_empty: int) -> None:
        self._places, self._most_empty = places, most_empty
        self._groups: list[JudgedGroup] = []
        self._empty = 0
        self._without_signal: list[str] = []

    def take(self, judged: JudgedGroup | None, group: Group) -> StepGroups | None:
        """``judged`` is None if ``group`` has no signal. The step, once its places are taken."""
        if judged is not None:
            self._groups.append(judged)
        else:
            self._without_signal.append(group.group_id)
            self._empty = min(self._empty + 1, self._most_empty)
        return self.rest() if len(self._groups) + self._empty == self._places else None

    def rest(self) -> StepGroups | None:
        """What has been collected, at the end of the data; None if there is nothing to train."""
        if not self._groups:
            return None
        # A short step is filled in the same proportion, so that no step is mostly replay.
        share = self._most_empty / self._places
        most = int(share / (1 - share) * len(self._groups) + 1e-9)
        found = StepGroups(tuple(self._groups), min(self._empty, most), tuple(self._without_signal))
        self._groups, self._empty, self._without_signal = [], 0, []
        return found


def places_of(settings: ReplayShareSettings, groups_per_step: int) -> Places:
    share = 0.0 if settings.replay == "off" else settings.replay_share
    return Places(groups_per_step, min(int(share * groups_per_step), groups_per_step - 1))


FOR_PATTERNS = 0.5
"""The share of a draw's chance that belongs to groups in which something went wrong that goes wrong again and again."""


def priorities(
    groups: Sequence[Replayable], settings: ReplaySettings, newest: int, marked: Marks = ()
) -> np.ndarray[Any, Any]:
    """The chance of each group to be drawn first.

    Every pattern has an equal part of what belongs to patterns, however many groups show it: otherwise what is wrong in
    most groups would leave nothing for what is wrong in a few.
    """
    if settings.replay == "uniform":
        return np.full(len(groups), 1 / len(groups))
    ages = np.array([newest - one.step for one in groups])
    spreads = np.array([one.spread for one in groups])
    weights = spreads * (1 - ages / (settings.replay_lag + 1))
    plain = weights / weights.sum()
    names = [(one.batch_id, one.group_id) for one in groups]
    shown = [plain * np.array([name in pattern for name in names]) for pattern in marked]
    parts = [part / part.sum() for part in shown if part.sum() > 0]
    if not parts:
        return np.asarray(plain)
    return np.asarray((1 - FOR_PATTERNS) * plain + FOR_PATTERNS * np.mean(parts, axis=0))


def draw(groups: Sequence[Replayable], chances: np.ndarray[Any, Any], number: int, key: str) -> list[Replayable]:
    """``number`` of the groups (or all) without repetition, in the order drawn; the same ``key`` gives the same."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest())
    size = min(number, int(np.count_nonzero(chances)))
    chosen = np.random.default_rng(seed).choice(len(groups), size=size, replace=False, p=chances)
    return [groups[int(index)] for index in chosen]


@dataclass(frozen=True, slots=True)
class ReplayedGroups:
    """Draws and reads groups for one model."""

    settings: ReplaySettings
    seed: int
    model: str
    database: Database
    ledger: Ledger
    reader: WindowReader
    feeds_patterns_back: bool = True
    """Whether groups that show an error pattern are likelier, with ``prioritised``."""

    async def fill(self, number: int) -> tuple[JudgedGroup, ...]:
        """Up to ``number`` groups to train again after the model's newest step; fewer if the buffer has no more."""
        newest = await self.ledger.newest_checkpoint(self.model)
        if newest is None or number == 0:
            return ()
        since = newest.step - self.settings.replay_lag
        left = await replayable(self.database, self.model, since=since, uses=self.settings.replay_uses)
        by_patterns = self.feeds_patterns_back and self.settings.replay == "prioritised"
        marked = await groups_with_patterns(self.database, self.model, since) if by_patterns else ()
        found: list[JudgedGroup] = []
        attempt = 0
        while left and len(found) < number:
            key = f"{self.seed}:{self.model}:{newest.step}:{attempt}"
            drawn = draw(left, priorities(left, self.settings, newest.step, marked), number - len(found), key)
            if not drawn:
                break
            taken = {one.number for one in drawn}
            left = [one for one in left if one.number not in taken]
            records = await stored_groups(self.database, drawn)
            read = [
                await with_rows(record, self.reader, self.ledger, self.model, use=one.times + 1)
                for one, record in zip(drawn, records, strict=True)
            ]
            found += [one for one in read if one is not None]
            attempt += 1
        return tuple(found)
