"""Which trajectories of a window are compared with each other, and which are left out before the judge is paid.

``window`` grouping compares all agents of the hour; ``matched`` also requires the same role and a similar
starting balance. Pure: the same window, settings and seed give the same groups, on every host.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from data_bridge.quality import CheckedWindow, Exclusion, Reason
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.config.sections import DropoutSettings, GroupingSettings
from trainer.types import MIN_GROUP, Group


class Comparable(Protocol):
    """What grouping needs: a trajectory, or its summary in a survey."""

    @property
    def trajectory_id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def role(self) -> str | None: ...
    @property
    def starting_balance(self) -> float | None: ...


C = TypeVar("C", bound=Comparable)


@dataclass(frozen=True, slots=True)
class Partition(Generic[C]):
    """Every member is either in exactly one group or in ``left_out`` with its reason."""

    groups: tuple[tuple[C, ...], ...]
    left_out: tuple[tuple[C, Reason], ...]


@dataclass(frozen=True, slots=True)
class Grouped:
    """The groups of one window, and the usable trajectories that did not fit into one."""

    groups: tuple[Group, ...]
    excluded: tuple[Exclusion, ...]


def form_groups(checked: CheckedWindow, settings: GroupingSettings, seed: int) -> Grouped:
    """Groups of at most ``max_group``; their sizes differ by at most one, and an agent is at most once in each."""
    window = checked.window
    parts = partition(checked.usable, settings, seed, checked.world)
    groups = tuple(
        Group(
            group_id(window.window_id, number), window.window_id, members, window.outcomes, checked.world, window.hours
        )
        for number, members in enumerate(parts.groups, start=1)
    )
    excluded = tuple(
        Exclusion(member.trajectory_id, member.agent_id, window.window_id, reason) for member, reason in parts.left_out
    )
    return Grouped(groups, excluded)


def group_id(window_id: str, number: int) -> str:
    return f"{window_id}/{number}"


def partition(members: Sequence[C], settings: GroupingSettings, seed: int, world: World = MARKET) -> Partition[C]:
    """Split ``members`` of one window into comparable groups; a world may keep roles apart."""
    if settings.grouping == "matched":
        pools = _pools(members, settings)
    else:
        pools = _by_role(members) if world.roles == "apart" else [list(members)]
    groups: list[tuple[C, ...]] = []
    left_out: list[tuple[C, Reason]] = []
    for pool in pools:
        split = _deal(pool, settings.max_group, seed)
        groups.extend(split.groups)
        left_out.extend(split.left_out)
    return Partition(tuple(groups), tuple(left_out))


def shuffle_key(seed: int, text: str) -> bytes:
    """A sort key for a fair and repeatable order: the same for the same seed and id, whatever else is in the run."""
    return hashlib.blake2b(text.encode(), digest_size=16, salt=(seed % 2**128).to_bytes(16, "big")).digest()


def _by_role(members: Sequence[C]) -> list[list[C]]:
    found: dict[str, list[C]] = defaultdict(list)
    for member in members:
        found[member.role or ""].append(member)
    return [own for _, own in sorted(found.items())]


def _pools(members: Sequence[C], settings: GroupingSettings) -> list[list[C]]:
    """Members of one role whose balances are within ``match_ratio`` of the smallest; unknown ones together."""
    pools: list[list[C]] = []
    for same_role in _by_role(members):
        balances = [(member, member.starting_balance) for member in same_role]
        unknown = [member for member, balance in balances if balance is None]
        known = [(balance, member.trajectory_id, member) for member, balance in balances if balance is not None]
        smallest: float | None = None
        for balance, _, member in sorted(known, key=lambda entry: entry[:2]):
            amount = max(balance, 0.0)
            if smallest is None or amount > smallest * settings.match_ratio:
                smallest = amount
                pools.append([])
            pools[-1].append(member)
        if unknown:
            pools.append(unknown)
    return pools


def _deal(pool: Sequence[C], max_group: int, seed: int) -> Partition[C]:
    """Deal the pool like cards: agents in seeded order, one agent's trajectories next to each other.

    Dealing round robin puts neighbours into different groups, so an agent with no more trajectories than there are
    groups is never twice in a group, and the sizes differ by at most one.
    """
    pool = sorted(pool, key=lambda member: shuffle_key(seed, member.trajectory_id))
    counts = Counter(member.agent_id for member in pool)
    number = _group_count(list(counts.values()), max_group)
    if number == 0:
        return Partition((), tuple((member, Reason.NO_COMPARABLE_PEER) for member in pool))

    by_agent: dict[str, list[C]] = defaultdict(list)
    for member in pool:
        by_agent[member.agent_id].append(member)
    kept: list[C] = []
    left_out: list[tuple[C, Reason]] = []
    for agent_id in sorted(by_agent, key=lambda agent_id: shuffle_key(seed, agent_id)):
        kept.extend(by_agent[agent_id][:number])
        left_out.extend((member, Reason.DUPLICATE_AGENT) for member in by_agent[agent_id][number:])
    surplus = kept[number * max_group :]
    left_out.extend((member, Reason.NO_COMPARABLE_PEER) for member in surplus)
    kept = kept[: number * max_group]
    return Partition(tuple(tuple(kept[start::number]) for start in range(number)), tuple(left_out))


def _group_count(per_agent: Sequence[int], max_group: int) -> int:
    """The minimum number of groups that uses as much of the pool as possible, none below ``MIN_GROUP``; 0 for none.

    With k groups an agent can be used at most k times, and k groups have room for ``k * max_group``.
    """
    total = sum(per_agent)
    agents_with = Counter(per_agent)
    best, best_used, placed, agents = 0, 0, 0, len(per_agent)
    for number in range(1, total // MIN_GROUP + 1):
        if best_used == total:
            break
        placed += agents  # sum(min(count, number)): each agent with at least ``number`` trajectories adds one
        agents -= agents_with[number]
        used = min(placed, number * max_group)
        if placed >= MIN_GROUP * number and used > best_used:
            best, best_used = number, used
    return best


_UNIT = 10**9  # shares are counted in whole billionths, so that sums are exact


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


def rate_for(total: int, settings: DropoutSettings) -> float:
    """``clamp(1 - target / total, 0, max)``, unless ``--dropout`` fixes it."""
    if settings.dropout is not None:
        return settings.dropout
    if total == 0:
        return 0.0
    return min(max(1 - settings.target_trajectories / total, 0.0), settings.max_dropout)


def plan_dropout(members: Sequence[Droppable], settings: DropoutSettings, seed: int) -> DropoutPlan:
    """What a run over ``members`` (all grouped trajectories, an agent at most once in a group) leaves out."""
    rate = rate_for(len(members), settings)
    if rate <= 0:
        return DropoutPlan(rate, len(members), frozenset())
    sizes = Counter(member.group_id for member in members)
    room = {group_id: max(size - MIN_GROUP, 0) for group_id, size in sizes.items()}
    shares = {group_id: int(_UNIT * min(rate, room[group_id] / size)) for group_id, size in sizes.items()}
    dropped = _every_nth(members, shares, seed)
    return DropoutPlan(rate, len(members), frozenset(_make_room(members, shares, room, dropped)))


def _every_nth(members: Sequence[Droppable], shares: dict[str, int], seed: int) -> set[str]:
    """Systematic sampling: go through all members, agent by agent, and drop one each time the shares add up to one.

    So every agent, and the run as a whole, loses its share rounded down or up.
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


def _make_room(
    members: Sequence[Droppable], shares: dict[str, int], room: dict[str, int], dropped: set[str]
) -> set[str]:
    """Repair the groups that lost too many, by exchanges that keep every agent's share.

    A group takes a trajectory back; its agent gives up one in another group instead, or nothing if the agent had lost
    its share rounded up. If that other group has no room, it takes one back in turn, and so on: a breadth-first search
    for an augmenting path. One exists because leaving out the fraction ``share`` of every trajectory satisfies all
    bounds, and a flow network with a fractional solution also has an integer one.
    """
    by_group: dict[str, list[Droppable]] = defaultdict(list)
    by_agent: dict[str, list[Droppable]] = defaultdict(list)
    for member in members:
        by_group[member.group_id].append(member)
        by_agent[member.agent_id].append(member)
    least = {agent: sum(shares[member.group_id] for member in own) // _UNIT for agent, own in by_agent.items()}
    lost = Counter(member.agent_id for member in members if member.trajectory_id in dropped)
    losses = Counter(member.group_id for member in members if member.trajectory_id in dropped)
    turns: Counter[str] = Counter()

    for group_id in sorted(by_group):
        while losses[group_id] > room[group_id]:
            path = _path(group_id, by_group, by_agent, turns, dropped, lost, least, losses, room)
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
    by_group: dict[str, list[Droppable]],
    by_agent: dict[str, list[Droppable]],
    turns: Counter[str],
    dropped: set[str],
    lost: Counter[str],
    least: dict[str, int],
    losses: Counter[str],
    room: dict[str, int],
) -> list[tuple[Droppable, Droppable | None]]:
    """The shortest chain of exchanges (taken back, given up instead) that returns one trajectory to group ``start``.

    ``turns`` is where the search among an agent's trajectories begins: behind the last one that was found, since those
    before it are in full groups by now. Beginning at the first each time takes the square of them.
    """
    came_by: dict[str, tuple[Droppable, Droppable] | None] = {start: None}

    def chain(back: Droppable, instead: Droppable | None) -> list[tuple[Droppable, Droppable | None]]:
        exchanges: list[tuple[Droppable, Droppable | None]] = [(back, instead)]
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
            own, first = by_agent[back.agent_id], turns[back.agent_id]
            for place in itertools.chain(range(first, len(own)), range(first)):
                instead = own[place]
                if instead.trajectory_id in dropped or instead.group_id in came_by:
                    continue
                if losses[instead.group_id] < room[instead.group_id]:
                    turns[back.agent_id] = place
                    return chain(back, instead)
                came_by[instead.group_id] = (back, instead)
                waiting.append(instead.group_id)
    # Unreachable as long as ``shares`` respect ``room``; the group's minimum is the bound that must hold.
    return [(next(member for member in by_group[start] if member.trajectory_id in dropped), None)]
