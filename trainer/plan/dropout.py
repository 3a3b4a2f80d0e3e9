"""Which grouped trajectories a run leaves out before the judge is paid: the same share of every agent.

Decided over all windows at once, so a run's members are held here as numbers, about 40 bytes each. Pure: the same
members and seed give the same dropout, on every host.
"""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from trainer.config.sections import DropoutSettings
from trainer.plan.grouping import shuffle_key
from trainer.types import MIN_GROUP

_UNIT = 10**9  # shares are counted in whole billionths, so that sums are exact
Numbers = NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class Droppable:
    """One trajectory as dropout sees it."""

    trajectory_id: str
    agent_id: str
    group_id: str


@dataclass(frozen=True, slots=True)
class DropoutPlan:
    """What is left out of a run. ``left_out`` contains trajectory ids."""

    rate: float
    """The rate that follows from the totals, or ``--dropout``."""
    total: int
    left_out: frozenset[str]

    @property
    def kept(self) -> int:
        return self.total - len(self.left_out)


@dataclass(frozen=True, slots=True)
class Thinning:
    """What is left out of a run, by the place of each member."""

    rate: float
    is_dropped: bytes
    """1 for a member that is left out, else 0, in the order in which they were added."""


def rate_for(total: int, settings: DropoutSettings) -> float:
    """``clamp(1 - target / total, 0, max)``, unless ``--dropout`` fixes it."""
    if settings.dropout is not None:
        return settings.dropout
    if total == 0:
        return 0.0
    return min(max(1 - settings.target_trajectories / total, 0.0), settings.max_dropout)


def plan_dropout(members: Sequence[Droppable], settings: DropoutSettings, seed: int) -> DropoutPlan:
    """What a run over ``members``, group by group, leaves out; an agent is at most once in a group."""
    everyone = Members(seed)
    for group_id, own in groupby(members, lambda member: member.group_id):
        everyone.add_group(group_id, ((member.trajectory_id, member.agent_id) for member in own))
    thinning = everyone.thinned(settings)
    left_out = (one.trajectory_id for one, is_out in zip(members, thinning.is_dropped, strict=True) if is_out)
    return DropoutPlan(thinning.rate, len(members), frozenset(left_out))


@dataclass(slots=True)
class Members:
    """All grouped trajectories of a run: of each the group's number, and two digests for its place in the walk."""

    seed: int
    _groups: array[int] = field(default_factory=lambda: array("i"))
    _names: list[str] = field(default_factory=list)
    _keys: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self._groups)

    def add_group(self, group_id: str, members: Iterable[tuple[str, str]]) -> None:
        """The next group, with the trajectory id and agent id of each member."""
        for trajectory_id, agent_id in members:
            self._groups.append(len(self._names))
            self._keys += shuffle_key(self.seed, agent_id) + shuffle_key(self.seed, trajectory_id)
        self._names.append(group_id)

    def thinned(self, settings: DropoutSettings) -> Thinning:
        """What a run over these members leaves out. Asked once: what is no longer needed is let go on the way."""
        rate = rate_for(len(self), settings)
        if rate <= 0 or not self._groups:
            return Thinning(rate, bytes(len(self)))
        groups: Numbers = np.frombuffer(self._groups, dtype=np.intc)
        sizes = np.maximum(np.bincount(groups, minlength=len(self._names)), 1)
        room = np.maximum(sizes - MIN_GROUP, 0)
        shares = (_UNIT * np.minimum(rate, room / sizes)).astype(np.int64)
        walk, agents = self._walk()
        dropped = np.zeros(len(self), dtype=np.bool_)
        dropped[walk] = self._every_nth(shares[groups[walk]])
        del walk
        exchanges = _Exchanges.among(groups, agents, shares, room, dropped)
        for group in sorted(exchanges.overfull(), key=self._names.__getitem__):
            exchanges.make_room(group)
        return Thinning(rate, bytes(exchanges.dropped))

    def _walk(self) -> tuple[Numbers, Numbers]:
        """The members agent by agent, in an order by chance; and a number for the agent of each member."""
        # A digest is 16 bytes, and numpy compares byte strings of one length as memory.
        keys = np.frombuffer(self._keys, dtype="S32")
        self._keys = bytearray()
        walk = np.argsort(keys, kind="stable").astype(np.intc)
        own = keys.view("S16")[::2][walk]
        del keys
        agents = np.zeros(len(self), dtype=np.intc)
        agents[walk[1:]] = np.cumsum(own[1:] != own[:-1], dtype=np.intc)
        return walk, agents

    def _every_nth(self, walked: Numbers) -> NDArray[np.bool_]:
        """Systematic sampling: go through all members, agent by agent, and drop one each time the shares add up to one.

        So every agent, and the run as a whole, loses its share rounded down or up.
        """
        start = int.from_bytes(shuffle_key(self.seed, "start of the walk")[:8], "big") % _UNIT
        full = (start + np.cumsum(walked)) // _UNIT
        return np.diff(full, prepend=0) > 0


@dataclass(slots=True)
class _Exchanges:
    """Repairs the groups that lost too many, by exchanges that keep every agent's share.

    A group takes a trajectory back; its agent gives up one in another group instead, or nothing if the agent had lost
    its share rounded up. If that other group has no room, it takes one back in turn, and so on: a breadth-first search
    for an augmenting path. One exists because leaving out the fraction ``share`` of every trajectory satisfies all
    bounds, and a flow network with a fractional solution also has an integer one. So a group that is not too small
    never becomes so.

    Members, groups and agents are numbers; ``by_group`` and ``by_agent`` have the members of each, one after the other.
    """

    group_of: array[int]
    agent_of: array[int]
    by_group: _Lists
    by_agent: _Lists
    dropped: bytearray
    room: array[int]
    losses: array[int]
    """What each group has lost."""
    lost: array[int]
    """What each agent has lost."""
    least: array[int]
    """What each agent loses at least."""
    turns: dict[int, int] = field(default_factory=dict)
    """Where the search among an agent's trajectories begins: behind the last one that was found, since those before it
    are in full groups by now. Beginning at the first each time takes the square of them."""

    @classmethod
    def among(
        cls, groups: Numbers, agents: Numbers, shares: Numbers, room: Numbers, dropped: NDArray[np.bool_]
    ) -> _Exchanges:
        due = np.zeros(int(agents.max()) + 1, dtype=np.int64)
        np.add.at(due, agents, shares[groups])
        return cls(
            *(_integers(groups), _integers(agents)),
            *(_Lists.of(groups, len(room)), _Lists.of(agents, len(due))),
            bytearray(dropped.tobytes()),
            _integers(room),
            _integers(np.bincount(groups[dropped], minlength=len(room))),
            _integers(np.bincount(agents[dropped], minlength=len(due))),
            _integers(due // _UNIT),
        )

    def overfull(self) -> list[int]:
        """Groups that have lost more than they have room for."""
        return [group for group, lost in enumerate(self.losses) if lost > self.room[group]]

    def make_room(self, group: int) -> None:
        while self.losses[group] > self.room[group]:
            for back, instead in self._path(group):
                self.dropped[back] = 0
                self.losses[self.group_of[back]] -= 1
                if instead is None:
                    self.lost[self.agent_of[back]] -= 1
                else:
                    self.dropped[instead] = 1
                    self.losses[self.group_of[instead]] += 1

    def _path(self, start: int) -> list[tuple[int, int | None]]:
        """The shortest chain of exchanges (taken back, given up instead) that returns one trajectory to a group."""
        came_by: dict[int, tuple[int, int] | None] = {start: None}

        def chain(back: int, instead: int | None) -> list[tuple[int, int | None]]:
            exchanges: list[tuple[int, int | None]] = [(back, instead)]
            step = came_by[self.group_of[back]]
            while step is not None:
                exchanges.append(step)
                step = came_by[self.group_of[step[0]]]
            return exchanges

        waiting = deque([start])
        while waiting:
            for back in self.by_group.of_one(waiting.popleft()):
                if not self.dropped[back]:
                    continue
                agent = self.agent_of[back]
                if self.lost[agent] > self.least[agent]:
                    return chain(back, None)
                own, first = self.by_agent.of_one(agent), self.turns.get(agent, 0)
                for place in itertools.chain(range(first, len(own)), range(first)):
                    instead = own[place]
                    group = self.group_of[instead]
                    if self.dropped[instead] or group in came_by:
                        continue
                    if self.losses[group] < self.room[group]:
                        self.turns[agent] = place
                        return chain(back, instead)
                    came_by[group] = (back, instead)
                    waiting.append(group)
        # Unreachable as long as the shares respect the room; the group's minimum is the bound that must hold.
        return [(next(one for one in self.by_group.of_one(start) if self.dropped[one]), None)]


@dataclass(frozen=True, slots=True)
class _Lists:
    """Members by a number that each has, as one list with the places where each number's begin."""

    members: memoryview[int]
    begins: array[int]

    @classmethod
    def of(cls, numbers: Numbers, count: int) -> _Lists:
        begins = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=count))])
        return cls(memoryview(_integers(np.argsort(numbers, kind="stable"))), _integers(begins))

    def of_one(self, number: int) -> memoryview[int]:
        return self.members[self.begins[number] : self.begins[number + 1]]


def _integers(numbers: Numbers) -> array[int]:
    """As what Python reads fast, one by one."""
    return array("i", numbers.astype(np.intc, copy=False).tobytes())
