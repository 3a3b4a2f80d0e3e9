"""Which trajectories of a window are compared with each other, and which of them have no peer.

``window`` grouping compares all agents of the hour; ``matched`` also requires the same role and a similar
starting balance. Pure: the same window, settings and seed give the same groups, on every host.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from data_bridge.models import AgentTrajectory
from data_bridge.quality import CheckedWindow, Exclusion, Reason
from data_bridge.survey_types import UsableTrajectory
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.config.sections import GroupingSettings
from trainer.types import MIN_GROUP, Group, PlannedWindow


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


Lasting = Mapping[tuple[str, str], Exclusion]
"""Rows that were found at fault before, by trajectory id and content hash."""

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


def row_name(row: UsableTrajectory | AgentTrajectory) -> tuple[str, str]:
    return row.trajectory_id, row.content_hash


def assemble(checked: CheckedWindow, planned: PlannedWindow, lasting: Lasting) -> Grouped:
    """The planned groups with the trajectories as they were read.

    A member that is no longer usable has its own reason in ``checked`` or ``lasting``; a group that falls below its
    minimum because of that is dropped.
    """
    wanted = {name for group in planned.groups for name in group.trajectory_ids}
    readable = {
        trajectory.trajectory_id: trajectory for trajectory in checked.usable if row_name(trajectory) not in lasting
    }
    groups: list[Group] = []
    excluded = [
        lasting[row_name(one)] for one in checked.usable if row_name(one) in lasting and one.trajectory_id in wanted
    ]
    for plan in planned.groups:
        members = tuple(readable[name] for name in plan.trajectory_ids if name in readable)
        if len(members) >= MIN_GROUP:
            truth = (checked.window.outcomes, checked.world, checked.window.hours)
            groups.append(Group(plan.group_id, planned.window_id, members, *truth))
        else:
            excluded += [
                Exclusion(one.trajectory_id, one.agent_id, planned.window_id, Reason.NO_COMPARABLE_PEER)
                for one in members
            ]
    return Grouped(tuple(groups), tuple(excluded))
