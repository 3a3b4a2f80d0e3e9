"""How much of a run to leave out before the judge is paid, and whom. Pure and seeded.

The rate comes from the totals of the run; who is left out comes from a hash of the trajectory id, so that a
rerun leaves out the same ones. Three things hold at once: every agent keeps its share within one trajectory,
no group falls below its minimum, and the run loses what the rate says (less only where small groups forbid it).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config.sections import DropoutSettings
from trainer.plan.grouping import shuffle_key
from trainer.types import MIN_GROUP

_UNIT = 10**9  # shares are counted in whole billionths, so that sums are exact


@dataclass(frozen=True, slots=True)
class Member:
    """One trajectory as dropout sees it."""

    trajectory_id: str
    agent_id: str
    group_id: str


@dataclass(frozen=True, slots=True)
class DropoutPlan:
    """What is left out of a run. ``left_out`` holds trajectory ids."""

    rate: float
    """What the totals (or ``--dropout``) ask for."""
    total: int
    left_out: frozenset[str]

    @property
    def kept(self) -> int:
        return self.total - len(self.left_out)


def rate_for(total: int, settings: DropoutSettings) -> float:
    """``clamp(1 - target / total, 0, max)``, unless ``--dropout`` fixes it."""
    if settings.dropout is not None:
        return settings.dropout
    if total == 0:
        return 0.0
    return min(max(1 - settings.target_trajectories / total, 0.0), settings.max_dropout)


def plan(members: Sequence[Member], settings: DropoutSettings, seed: int) -> DropoutPlan:
    """Whom a run over ``members`` (all grouped trajectories, an agent at most once in a group) leaves out."""
    rate = rate_for(len(members), settings)
    if rate <= 0:
        return DropoutPlan(rate, len(members), frozenset())
    sizes = Counter(member.group_id for member in members)
    room = {group_id: max(size - MIN_GROUP, 0) for group_id, size in sizes.items()}
    shares = {group_id: int(_UNIT * min(rate, room[group_id] / size)) for group_id, size in sizes.items()}
    dropped = _every_nth(members, shares, seed)
    return DropoutPlan(rate, len(members), frozenset(_make_room(members, shares, room, dropped)))


def _every_nth(members: Sequence[Member], shares: dict[str, int], seed: int) -> set[str]:
    """Systematic sampling: walk along all members, agent by agent, and drop one each time a whole share is full.

    Any stretch of the walk, so every agent and the run as a whole, loses its share rounded down or up.
    """
    walk = sorted(
        members,
        key=lambda member: (
            shuffle_key(seed, member.agent_id),
            member.agent_id,
            shuffle_key(seed, member.trajectory_id),
        ),
    )
    filled = int.from_bytes(shuffle_key(seed, "start of the walk")[:8], "big") % _UNIT
    dropped: set[str] = set()
    for member in walk:
        filled += shares[member.group_id]
        if filled >= _UNIT:
            filled -= _UNIT
            dropped.add(member.trajectory_id)
    return dropped


def _make_room(members: Sequence[Member], shares: dict[str, int], room: dict[str, int], dropped: set[str]) -> set[str]:
    """Mend the groups that lost more than they may, by exchanges that leave every agent its share.

    A group takes a trajectory back; its agent gives one of another group instead, or, if the agent had lost
    its share rounded up, nothing. If that other group has no room it takes one back in turn, and so on: a
    breadth-first search for an augmenting path. One exists because leaving out the fraction ``share`` of every
    trajectory keeps all bounds, and in a flow network whole numbers can do what fractions can.
    """
    by_group: dict[str, list[Member]] = defaultdict(list)
    by_agent: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        by_group[member.group_id].append(member)
        by_agent[member.agent_id].append(member)
    least = {agent: sum(shares[member.group_id] for member in own) // _UNIT for agent, own in by_agent.items()}
    lost = Counter(member.agent_id for member in members if member.trajectory_id in dropped)
    losses = Counter(member.group_id for member in members if member.trajectory_id in dropped)

    for group_id in sorted(by_group):
        while losses[group_id] > room[group_id]:
            path = _path(group_id, by_group, by_agent, dropped, lost, least, losses, room)
            for back, instead in path:
                dropped.discard(back.trajectory_id)
                losses[back.group_id] -= 1
                if instead is None:
                    lost[back.agent_id] -= 1
                else:
                    dropped.add(instead.trajectory_id)
                    losses[instead.group_id] += 1
    return dropped


def _path(
    start: str,
    by_group: dict[str, list[Member]],
    by_agent: dict[str, list[Member]],
    dropped: set[str],
    lost: Counter[str],
    least: dict[str, int],
    losses: Counter[str],
    room: dict[str, int],
) -> list[tuple[Member, Member | None]]:
    """The shortest chain of exchanges (taken back, given instead) that relieves group ``start`` by one."""
    came_by: dict[str, tuple[Member, Member] | None] = {start: None}

    def chain(back: Member, instead: Member | None) -> list[tuple[Member, Member | None]]:
        exchanges: list[tuple[Member, Member | None]] = [(back, instead)]
        step = came_by[back.group_id]
        while step is not None:
            exchanges.append(step)
            step = came_by[step[0].group_id]
        return exchanges

    waiting = deque([start])
    while waiting:
        for back in by_group[waiting.popleft()]:
            if back.trajectory_id not in dropped:
                continue
            if lost[back.agent_id] > least[back.agent_id]:
                return chain(back, None)
            for instead in by_agent[back.agent_id]:
                if instead.trajectory_id in dropped or instead.group_id in came_by:
                    continue
                if losses[instead.group_id] < room[instead.group_id]:
                    return chain(back, instead)
                came_by[instead.group_id] = (back, instead)
                waiting.append(instead.group_id)
    # Not reachable while ``shares`` respect ``room``; the group's minimum is the bound that must hold.
    return [(next(member for member in by_group[start] if member.trajectory_id in dropped), None)]
