"""How much of a window is read of each agent: a flood costs the agent that writes it, and nobody else.

Decided from the sizes of rows, before any of their JSON is fetched. What is not fetched has a reason like any other row
that is not used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from data_bridge.decode import Row, unreadable
from data_bridge.models import UnreadableRow
from data_bridge.quality import Reason

MAX_ROWS = 100
"""Of one agent in one window; the earliest ones are read."""
MAX_LISTED = 100
"""Of an agent's rows beyond those, how many are left out by name; the last one says how many more there are."""
ROWS_OF_AGENT, ROWS_OF_WINDOW = 2, 24
"""Most JSON of one agent in a window, and of a window, in rows of the largest size (``Rules.max_bytes``)."""
FAIR_SHARE = 200_000
"""Bytes of one agent that are read of a window in parts, however many agents it has."""
MAX_ID = 500
"""Bytes of an id: the ledger cannot index much longer ones."""
BATCH_BYTES = 4_000_000
"""JSON that is read at once."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The rows of a window to fetch, and those that are left out because of their number, size or id."""

    wanted: tuple[str, ...]
    """Trajectory ids."""
    left_out: tuple[UnreadableRow, ...]
    size: int
    """Bytes of the wanted rows' JSON."""
    is_last: bool = True
    """Whether no further part of the same window follows."""


def share_out(window_id: str, rows: Sequence[Row], max_bytes: int) -> Shares:
    """Of each agent the earliest rows, up to ``MAX_ROWS`` and an equal share of the window's bytes.

    What agents with less than the share leave over is divided among the others. So all rows of an agent with less
    than its share are read, whatever others write.
    """
    agents, left_out = _shares_of_agents(window_id, rows, max_bytes)
    return _together(agents, left_out)


def share_at_once(window_id: str, rows: Sequence[Row], max_bytes: int) -> list[Shares]:
    return [share_out(window_id, rows, max_bytes)]


def share_in_parts(window_id: str, rows: Sequence[Row], max_bytes: int) -> list[Shares]:
    """As ``share_out``, but in parts of about ``BATCH_BYTES`` with whole agents, and none has less than
    ``FAIR_SHARE``: memory holds one part, however many agents there are."""
    agents, left_out = _shares_of_agents(window_id, rows, max_bytes, least=FAIR_SHARE)
    parts: list[list[tuple[list[str], int]]] = [[]]
    size = 0
    for own, taken in agents:
        if parts[-1] and size + taken > BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append((own, taken))
        size += taken
    return [
        _together(part, left_out if number == 1 else [], is_last=number == len(parts))
        for number, part in enumerate(parts, start=1)
    ]


def _together(
    agents: Sequence[tuple[list[str], int]], left_out: Sequence[UnreadableRow], *, is_last: bool = True
) -> Shares:
    wanted = tuple(name for own, _ in agents for name in own)
    return Shares(wanted, tuple(left_out), sum(taken for _, taken in agents), is_last)


def _shares_of_agents(
    window_id: str, rows: Sequence[Row], max_bytes: int, least: int = 0
) -> tuple[list[tuple[list[str], int]], list[UnreadableRow]]:
    """Each agent's rows to fetch with their size, and the rows that are left out."""
    left_out: list[UnreadableRow] = []
    sound: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        fault = _fault_of(row)
        if fault is None:
            sound[row["agentId"]].append(row)
        else:
            left_out.append(unreadable(row, window_id, *fault))
    most = ROWS_OF_AGENT * max_bytes
    sizes = [min(sum(_sent(row, max_bytes) for row in own), most) for own in sound.values()]
    share = min(max(equal_share(sizes, ROWS_OF_WINDOW * max_bytes), least), most)
    agents: list[tuple[list[str], int]] = []
    for own in sound.values():
        wanted, taken = list[str](), 0
        for row in own:
            size = _sent(row, max_bytes)
            if taken + size <= share:
                taken += size
                wanted.append(row["trajectoryId"])
            else:
                detail = f"the agent's rows in this window take more than its share of {share / 1e6:.1f} MB"
                left_out.append(unreadable(row, window_id, Reason.OVER_SHARE, detail))
        agents.append((wanted, taken))
    return agents, left_out


def equal_share(sizes: Sequence[int], room: int) -> int:
    """The largest share with ``sum(min(size, share)) <= room``; ``room`` itself if all sizes fit."""
    left = room
    for position, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - position)
        if size > share:
            return share
        left -= size
    return room


def _fault_of(row: Row) -> tuple[Reason, str] | None:
    """Why a row is not even fetched; the last one that is listed of an agent says how many more there are."""
    place, number = row["place"], row["number"]
    more = f", and {number - place} more" if place == MAX_ROWS + MAX_LISTED < number else ""
    if row["isLong"]:
        return Reason.BAD_ID, f"an id of more than {MAX_ID} bytes{more}"
    if row["bad"]:
        return Reason.BAD_WINDOW_ID, f"windowId {row['windowId']!r}{more}"
    if place > MAX_ROWS:
        return Reason.TOO_MANY_ROWS, f"{number} rows of the agent in this window, of at most {MAX_ROWS}{more}"
    return None


def _sent(row: Row, max_bytes: int) -> int:
    """Bytes of JSON that fetching the row sends: none if it is too large."""
    size: int = row["size"]
    return size if size <= max_bytes else 0
