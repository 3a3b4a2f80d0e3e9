"""Judged groups by reference: as the ledger stores them, and with their rows read again."""

from __future__ import annotations

from data_bridge.models import AgentTrajectory
from data_bridge.reader import WindowReader
from trainer.ledger.batch_records import GroupRecord
from trainer.ledger.runs import Ledger
from trainer.types import Group, JudgedGroup


def record_of_group(judged: JudgedGroup) -> GroupRecord:
    """What is stored of a group: its verdicts, and the hash of each row as it was judged."""
    return GroupRecord(
        judged.group.group_id,
        judged.group.window_id,
        tuple(member.agent_id for member in judged.group.trajectories),
        judged.verdicts,
        judged.identity,
        judged.verdict_key,
        judged.use,
        tuple(member.content_hash for member in judged.group.trajectories),
        tuple(_kept_role(member.role) for member in judged.group.trajectories),
    )


def _kept_role(role: str | None) -> str | None:
    """A role is an agent's own word: kept short, and without the character that Postgres does not store."""
    return None if role is None else role[:100].replace("\x00", "\N{REPLACEMENT CHARACTER}")


async def with_rows(
    record: GroupRecord, reader: WindowReader, ledger: Ledger, model: str, *, use: int = 1
) -> JudgedGroup | None:
    """The group with its rows; None if they are not all as they were judged, or one was found at fault."""
    window = await reader.read(record.window_id)
    if window is None or len(record.content) != len(record.verdicts):
        return None
    lasting = await ledger.lasting(model, [record.window_id])
    rows = {(one.trajectory_id, one.content_hash): one for one in window.trajectories}
    names = [(one.trajectory_id, content) for one, content in zip(record.verdicts, record.content, strict=True)]
    members: list[AgentTrajectory] = [rows[name] for name in names if name in rows and name not in lasting]
    if len(members) < len(names):
        return None
    group = Group(record.group_id, record.window_id, tuple(members), window.outcomes, reader.rules.world, window.hours)
    return JudgedGroup(group, record.verdicts, record.identity, record.verdict_key, cached=True, use=use)
