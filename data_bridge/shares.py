"""How much of a window one agent may fill, decided before any JSON is fetched: a flood costs the agent that writes it.

Postgres numbers the rows of each agent and sends their sizes, which it knows without reading them; ``share_out``
chooses. What is not chosen has a reason like any other row that is not used.
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
ROWS_OF_AGENT, ROWS_OF_WINDOW = 2, 12
"""Most JSON of one agent in a window, and of a window, in rows of the largest size (``Rules.max_bytes``)."""
MAX_ID = 500
"""Bytes of an id: the ledger cannot index much longer ones."""

_COLUMNS = """
  "windowId", "agentId", "trajectoryId", "createdAt", octet_length("stepsJson") + octet_length("metadataJson") AS size
"""
_NAMED = f"""
SELECT at."window", false AS bad, {_COLUMNS} FROM unnest($2::text[], $3::text[]) AS at(raw, "window")
JOIN trajectories ON "windowId" = at.raw
"""
_STRAYS = f"""
UNION ALL
SELECT to_char("startTime", 'YYYY-MM-DD"T"HH24":00"'), "windowId" IS NOT NULL, {_COLUMNS} FROM trajectories
WHERE ("windowId" IS NULL OR "windowId" = ANY($4)) AND "agentId" = ANY($5)
  AND "startTime" >= $6 AND "startTime" < $7 AND date_trunc('hour', "startTime") = ANY($8)
"""
_SHORT = "CASE WHEN octet_length({0}) <= {1} THEN {0} ELSE left({0}, 100) || '... ' || md5({0}) END AS {0}"
_MEASURE = f"""
SELECT * FROM (
  SELECT "window", bad, "windowId", size,
    {_SHORT.format('"agentId"', MAX_ID)}, {_SHORT.format('"trajectoryId"', MAX_ID)},
    greatest(octet_length("trajectoryId"), octet_length("agentId")) > {MAX_ID} AS "isLong",
    row_number() OVER (of_agent ORDER BY "createdAt", "trajectoryId") AS place,
    count(*) OVER of_agent AS number
  FROM (%s) AS rows WINDOW of_agent AS (PARTITION BY "window", bad, "agentId")
) AS placed WHERE place <= $1 ORDER BY "agentId", place
"""


def measuring(*, strays: bool) -> str:
    """The query for the first $1 rows of each agent in some windows, without their JSON.

    $2 are the windows' ids as stored, $3 the canonical id of each. With ``strays``, also rows whose id is NULL or one
    of $4, of the agents $5, that started from $6 to $7 in one of the hours $8.
    """
    return _MEASURE % (_NAMED + _STRAYS if strays else _NAMED)


@dataclass(frozen=True, slots=True)
class Shares:
    """The rows of a window to fetch, and those that are left out because of their number, size or id."""

    wanted: tuple[str, ...]
    """Trajectory ids."""
    left_out: tuple[UnreadableRow, ...]
    size: int
    """Bytes of the wanted rows' JSON."""


def share_out(window_id: str, rows: Sequence[Row], max_bytes: int) -> Shares:
    """Of each agent the earliest rows, up to ``MAX_ROWS`` and an equal share of the window's bytes.

    What agents with less than the share leave over is divided among the others. So all rows of an agent with less
    than its share are read, whatever others write.
    """
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
    share = min(equal_share(sizes, ROWS_OF_WINDOW * max_bytes), most)
    wanted: list[str] = []
    total = 0
    for own in sound.values():
        taken = 0
        for row in own:
            size = _sent(row, max_bytes)
            if taken + size <= share:
                taken += size
                wanted.append(row["trajectoryId"])
            else:
                detail = f"the agent's rows in this window take more than its share of {share / 1e6:.1f} MB"
                left_out.append(unreadable(row, window_id, Reason.OVER_SHARE, detail))
        total += taken
    return Shares(tuple(wanted), tuple(left_out), total)


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
